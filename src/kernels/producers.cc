// The list of producers (producers.inc) and the choice among them.
#include "kernels/producers.h"

#include <algorithm>

#include "base/check.h"

namespace octavo {

#define OCTAVO_PRODUCERS(name, variable) \
  namespace name {                       \
  extern const ProducerKernels variable; \
  }
#include "kernels/producers.inc"
#undef OCTAVO_PRODUCERS

std::span<const ProducerKernels* const> producer_kernels() {
#define OCTAVO_PRODUCERS(name, variable) &name::variable,
  static constexpr const ProducerKernels* kRows[] = {
#include "kernels/producers.inc"
  };
#undef OCTAVO_PRODUCERS
  return kRows;
}

const ProducerKernels& choose_producers(Isa isa) {
  const ProducerKernels* best = nullptr;
  for (const ProducerKernels* row : producer_kernels())
    if (row->isa <= isa && isa_available(row->isa)) best = row;
  OCTAVO_CHECK(best != nullptr, "no producers at {}", isa_name(isa));
  return *best;
}

}  // namespace octavo
