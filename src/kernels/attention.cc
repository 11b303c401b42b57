// The list of attention kernels (attention.inc) and the choice among them.
#include "kernels/attention.h"

#include "base/check.h"

namespace octavo {

#define OCTAVO_ATTENTION(name, variable) \
  namespace name {                       \
  extern const AttentionKernel variable; \
  }
#include "kernels/attention.inc"
#undef OCTAVO_ATTENTION

std::span<const AttentionKernel* const> attention_kernels() {
#define OCTAVO_ATTENTION(name, variable) &name::variable,
  static constexpr const AttentionKernel* kRows[] = {
#include "kernels/attention.inc"
  };
#undef OCTAVO_ATTENTION
  return kRows;
}

const AttentionKernel& choose_attention(const AttentionKey& key, Isa isa, std::vector<std::string>* why_not) {
  const AttentionKernel* best = nullptr;
  std::vector<std::string> refusals;
  for (const AttentionKernel* row : attention_kernels()) {
    if (row->isa > isa || !isa_available(row->isa)) continue;
    if (const std::string reason = row->accepts(key); !reason.empty()) {
      refusals.push_back(fmt::format("{}: {}", row->name, reason));
      continue;
    }
    best = row;
    refusals.clear();  // only those above the row that is chosen matter
  }
  OCTAVO_CHECK(best != nullptr, "no attention kernel at {}", isa_name(isa));
  if (why_not != nullptr) why_not->insert(why_not->end(), refusals.begin(), refusals.end());
  return *best;
}

}  // namespace octavo
