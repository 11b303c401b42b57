// The requests of a run, as JSON bodies: prompts made by chance, or read from a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace octavo {

// Both ends included.
struct LengthRange {
  int64_t low = 128, high = 128;
};
// "128" or "64-256".
Result<LengthRange> parse_length_range(std::string_view text, std::string_view flag);

// What all requests of a run have in common.
struct RequestShape {
  std::string model;
  bool chat = false;
  double temperature = 0;
  bool ignore_eos = false;
};

struct SyntheticWorkload {
  size_t count = 64;
  LengthRange input, output;       // tokens; of a chat's text, words
  int64_t shared_prefix = 0;       // tokens (words) that all prompts begin with, beside `input`
  std::vector<int64_t> token_ids;  // what prompts of tokens are made of; unused by chats
  uint64_t seed = 0;
};

// The same workload gives the same bodies. Prompts differ from each other after the shared prefix.
std::vector<std::string> synthetic_requests(const SyntheticWorkload& workload, const RequestShape& shape);

// A JSONL file: per line {"prompt": text or token ids} or {"messages": [...]}, and, if it likes, its own
// "output_tokens" (or "max_tokens"); other fields are ignored. `count` requests in the order of the file, from its
// start again where it is too short; 0: each once. Messages need a chat; a prompt of text is a chat's one user message.
Result<std::vector<std::string>> dataset_requests(const std::filesystem::path& file, size_t count, LengthRange output,
                                                  uint64_t seed, const RequestShape& shape);

// A short request that any server of the endpoint can answer; its prompt is text.
std::string warmup_request(const RequestShape& shape);

// Common words, letters and digits, for tokenizers.
std::string plain_text();

}  // namespace octavo
