// What is kept of one request: when it was due, sent and answered, and what went wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octavo {

// Times are seconds since the start of the run.
struct RequestRecord {
  double due = 0;             // open loop: when it was scheduled; closed loop: when it was sent
  double first = 0;           // its first chunk with text
  double last = 0;            // its last chunk
  std::vector<double> gaps;   // between one chunk with text and the next
  int64_t prompt_tokens = 0;  // 0 where the server did not say
  int64_t output_tokens = 0;  // as the server counted, else the chunks with text
  bool counted_by_server = false;
  std::string error;  // why it failed; empty: completed

  bool completed() const { return error.empty(); }
  double ttft() const { return first - due; }
  double e2e() const { return last - due; }
  // Time per output token after the first; 0 for an answer of one token.
  double tpot() const { return output_tokens > 1 ? (last - first) / static_cast<double>(output_tokens - 1) : 0.0; }
};

}  // namespace octavo
