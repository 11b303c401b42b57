// The KV cache part of a quantized checkpoint. Include only in .cc files.
#pragma once

#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/dialect_rules.h"

namespace octavo {

// Fills plan.kv: one entry per layer. Stored scales are used wherever they are; a side without one gets scales per
// token and head, and a note where the config promised stored ones.
Result<void> plan_kv(const std::optional<KvRule>& rule, const ModelConfig& config, const TensorReader& tensors,
                     PrecisionPlan& plan);

}  // namespace octavo
