// What the report says of a sensitivity file beside its entries.
#pragma once

#include "base/json.h"
#include "evaluate/sensitivity_file.h"

namespace octavo {

// Of each scheme of the weights, then of each format of the KV cache, which may have the same name: {"part" ("weights",
// "kv_cache"), "scheme", "layers", "free", "watch", "keep_wide", "lowest", "highest", "worst"}: how many entries
// are of each class, the lowest and the highest KL divergence, and the indices of the up to ten entries that cost the
// most.
Json scheme_summaries(const Sensitivity& sensitivity);

}  // namespace octavo
