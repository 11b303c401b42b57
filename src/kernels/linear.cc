// The list of linear kernels (linear.inc) and the choice among them.
#include "kernels/linear.h"

#include <algorithm>

#include "base/check.h"

namespace octavo {

#define OCTAVO_LINEAR(name, variable) \
  namespace name {                    \
  extern const LinearKernel variable; \
  }
#include "kernels/linear.inc"
#undef OCTAVO_LINEAR

std::span<const LinearKernel* const> linear_kernels() {
#define OCTAVO_LINEAR(name, variable) &name::variable,
  static constexpr const LinearKernel* kRows[] = {
#include "kernels/linear.inc"
  };
#undef OCTAVO_LINEAR
  return kRows;
}

const LinearKernel& choose_linear(const LinearKey& key, Isa isa, std::vector<std::string>* why_not) {
  const std::span<const LinearKernel* const> rows = linear_kernels();
  std::vector<std::pair<Isa, std::string>> refusals;
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    if ((*row)->isa > isa || !isa_available((*row)->isa)) continue;
    const std::string reason = (*row)->accepts(key);
    if (!reason.empty()) {
      refusals.emplace_back((*row)->isa, fmt::format("{}: {}", (*row)->name, reason));
      continue;
    }
    // A refusal matters where a higher level steps back; the rows of one level share the formats out among them.
    for (const auto& [level, text] : refusals)
      if (why_not != nullptr && level > (*row)->isa) why_not->push_back(text);
    return **row;
  }
  OCTAVO_CHECK(false, "no linear kernel for {} x {}", key.weight.describe(), key.activation.describe());
}

}  // namespace octavo
