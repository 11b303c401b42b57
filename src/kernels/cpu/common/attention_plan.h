// How an attention call is cut into units that threads take one by one. The cut never shows in the result: a softmax
// state belongs to one row and one block of keys, and states merge in the order of the blocks (kernels/attention.h).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention.h"

namespace octavo {

// A run of tokens of one sequence. Decode: one token, its blocks cut into units of unit_blocks. Prefill: a tile of
// tokens, one unit per KV head.
struct AttentionJob {
  const KvSequence* sequence = nullptr;
  int64_t first_token = 0, num_tokens = 0;  // in the sequence's rows
  int64_t first_block = 0, num_blocks = 0;  // of keys, counted from position 0
  bool tile = false;
  int64_t unit_blocks = 0, units_per_head = 1;
  int64_t first_unit = 0;
  int64_t first_state = -1;  // decode in several units: place of the state of head 0 and the first block

  int64_t position() const { return sequence->position + first_token; }
  int64_t row() const { return sequence->row_begin + first_token; }
  bool split() const { return units_per_head > 1; }
};

struct AttentionPlan {
  std::vector<AttentionJob> jobs;  // by first_unit
  int64_t num_units = 0, num_states = 0;
  int64_t tile_tokens = 1;  // the most tokens of a job
  bool small = false;       // not worth waking a second thread
};

AttentionPlan plan_attention(const AttentionCall& call, int num_threads);

// The job that a unit belongs to.
const AttentionJob& job_of_unit(const AttentionPlan& plan, int64_t unit);

}  // namespace octavo
