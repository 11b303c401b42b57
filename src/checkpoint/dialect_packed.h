// Weights whose codes are packed a dialect's own way: found, checked and decoded. Include only in .cc files.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/dialect_rules.h"
#include "precision/plan.h"

namespace octavo {

// A packed weight whose tensors were found to fit together.
struct PackedWeight {
  const PackedLayout* layout = nullptr;
  bool zeros_less_one = false;
  const TensorEntry *weight = nullptr, *scale = nullptr, *zeros = nullptr, *groups = nullptr, *outer = nullptr,
                    *input_factor = nullptr;
  TensorFormat format;  // of the codes and grids
  LinearPlan plan;      // BF16 where the columns' order or the input's factor leave no grid along K
};

// The packed tensor of a module; nullptr where its rule has no layout, or its weight is stored wide.
const TensorEntry* find_packed_weight(const LinearModule& module, const ModuleRule& rule, const TensorReader& tensors);

// Errors: a missing tensor, a wrong type or shape, a column in a group that does not exist.
Result<PackedWeight> check_packed(const LinearModule& module, const ModuleRule& rule, const TensorEntry& weight,
                                  const TensorReader& tensors);

// The weight with everything that belongs to it. Adds the names of its tensors to `used`.
Result<StoredLinear> read_packed(const LinearModule& module, const PackedWeight& packed, const TensorReader& tensors,
                                 std::set<std::string>& used, std::vector<std::string>& notes);

}  // namespace octavo
