// How many tokens the KV cache of a serving engine holds.
#pragma once

#include <cstdint>

#include "engine/serving.h"

namespace octavo {

// From options.kv_cache_tokens, or from the memory that the limit leaves beside weights and step memory; at most what
// max_num_seqs requests of full length can use. Error: too little for one page, or more than the machine has.
Result<int64_t> plan_kv_cache_tokens(const Model& model, const ServingOptions& options);

// Bytes that this process may still take: of the machine, and of its control group.
int64_t available_memory();

}  // namespace octavo
