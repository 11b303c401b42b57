// What the report says of a sensitivity file beside its entries.
#pragma once

#include "base/json.h"
#include "evaluate/sensitivity_file.h"

namespace octavo {

// Of each scheme: {"scheme", "layers", "free", "watch", "keep_wide", "lowest", "highest", "worst"}: how many entries
// are of each class, the lowest and the highest KL divergence, and the indices of the up to ten entries that cost the
// most.
Json scheme_summaries(const Sensitivity& sensitivity);

}  // namespace octavo
