// What must be known of a server before it can be measured: a model's name, and which token ids are plain text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loadgen/load_generator.h"

namespace octavo {

// The first model that /v1/models lists. Waits up to `wait_seconds` for a server that is not there yet or still loads.
Result<std::string> served_model(const ServerAddress& server, const ConnectionOptions& options, double wait_seconds);

// Distinct ids of ordinary text, ascending: what /tokenize (of Octavo, vLLM, llama.cpp) makes of common words, letters
// and digits.
Result<std::vector<int64_t>> plain_token_ids(const ServerAddress& server, const std::string& model,
                                             const ConnectionOptions& options);

}  // namespace octavo
