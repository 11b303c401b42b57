// Step: what the scheduler hands to the runner, as plain data: which requests, which tokens, which pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/tokenizer.h"

namespace octavo {

using RequestId = uint64_t;

// Rows of one request: its tokens at [position, position + num_rows).
struct Share {
  RequestId id = 0;
  int64_t position = 0, num_rows = 0;
  std::span<const TokenId> tokens;  // [num_rows]
  std::span<const int32_t> pages;   // of the whole request; hold every position up to the last row
  int64_t first_logits = 0;         // rows [first_logits, num_rows) want logits; == num_rows: none
  bool samples = false;             // the last row's logits give the next token
};

// Spans stay valid until the scheduler is called again.
struct Step {
  std::vector<Share> shares;
  int64_t num_rows = 0;      // of all shares
  int64_t num_logits = 0;    // rows that want logits
  int64_t prefill_rows = 0;  // of shares with more than one row

  bool empty() const { return shares.empty(); }
};

}  // namespace octavo
