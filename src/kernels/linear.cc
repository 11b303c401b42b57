// The list of linear kernels (linear.inc) and the choice among them.
#include "kernels/linear.h"

#include <algorithm>
#include <cstdlib>

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

void PackedLinear::allocate_outliers(int64_t count) {
  num_outliers = count;
  outliers = AlignedArray<uint16_t>(static_cast<size_t>((key.rows + 31) / 32 * 32 * count));
}

void PackedLinear::pack_outliers(int64_t row0, std::span<const float> slab) {
  for (size_t at = 0; at < slab.size(); ++at) {
    const int64_t row = static_cast<int64_t>(at) / num_outliers, i = static_cast<int64_t>(at) % num_outliers;
    store_element(ElementType::kBf16, outliers.data(), outlier_index(row0 + row, i), slab[at]);
  }
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
  std::abort();  // for compilers that do not see it under sanitizers
}

}  // namespace octavo
