#include "kernels/cpu/common/attention_plan.h"

#include <algorithm>

namespace octavo {
namespace {

// Rows (tokens x heads of a group) that share one decoding of a block: many enough to make it cheap.
constexpr int64_t kTileRows = 192, kLeastTileRows = 48;
// With fewer rows in a sequence, each token is treated as decode.
constexpr int64_t kMostDecodeRows = 8;
// A unit of decode is at most this many blocks, and there should be this many units per thread.
constexpr int64_t kMostUnitBlocks = 16, kUnitsPerThread = 4;
// Key elements below which one thread is faster than two: about two microseconds.
constexpr int64_t kSmallElements = 32768;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t group_of(const AttentionCall& call) {
  return call.num_heads / call.kv.num_kv_heads;
}

bool is_decode(const AttentionCall& call, const KvSequence& sequence) {
  return sequence.num_rows == 1 || sequence.num_rows * group_of(call) <= kMostDecodeRows;
}

// Tokens per tile: 192 rows, or fewer where that would leave threads without work.
int64_t choose_tile_tokens(const AttentionCall& call, int num_threads) {
  int64_t tokens = 0;
  for (int64_t s = 0; s < call.num_sequences; ++s)
    if (!is_decode(call, call.sequences[s])) tokens += call.sequences[s].num_rows;
  const int64_t most = ceil_div(kTileRows, group_of(call)), least = ceil_div(kLeastTileRows, group_of(call));
  const int64_t tiles = std::max<int64_t>(1, ceil_div(4 * num_threads, call.kv.num_kv_heads));
  return std::clamp(ceil_div(tokens, tiles), least, most);
}

AttentionJob make_job(const AttentionCall& call, const KvSequence& sequence, int64_t first, int64_t count) {
  AttentionJob job{.sequence = &sequence, .first_token = first, .num_tokens = count};
  const int64_t position = job.position();
  const int64_t first_key = call.window > 0 ? std::max<int64_t>(0, position - call.window + 1) : 0;
  job.first_block = first_key / kAttentionBlock;
  job.num_blocks = (position + count - 1) / kAttentionBlock + 1 - job.first_block;
  return job;
}

void add_tiles(const AttentionCall& call, const KvSequence& sequence, AttentionPlan& plan) {
  const int64_t tiles = ceil_div(sequence.num_rows, plan.tile_tokens);
  for (int64_t i = tiles - 1; i >= 0; --i) {  // the last sees the most keys: first in line
    const int64_t begin = sequence.num_rows * i / tiles, end = sequence.num_rows * (i + 1) / tiles;
    plan.jobs.push_back(make_job(call, sequence, begin, end - begin));
    plan.jobs.back().tile = true;
  }
}

// Units of the decode jobs, cut where a head of one job would be a large share of all the work.
void cut_decode_jobs(const AttentionCall& call, int num_threads, AttentionPlan& plan) {
  int64_t blocks = 0;
  for (const AttentionJob& job : plan.jobs) blocks += job.num_blocks * (job.tile ? job.num_tokens : 1);
  blocks *= call.kv.num_kv_heads;
  const int64_t share = std::clamp<int64_t>(blocks / (kUnitsPerThread * num_threads), 1, kMostUnitBlocks);
  for (AttentionJob& job : plan.jobs) {
    if (job.tile || num_threads == 1 || job.num_blocks <= blocks / (kUnitsPerThread * num_threads)) {
      job.unit_blocks = job.num_blocks;
    } else {
      job.unit_blocks = share;
    }
    job.units_per_head = ceil_div(job.num_blocks, job.unit_blocks);
    job.first_unit = plan.num_units;
    plan.num_units += job.units_per_head * call.kv.num_kv_heads;
    if (job.split()) {
      job.first_state = plan.num_states;
      plan.num_states += job.num_blocks * call.kv.num_kv_heads;
    }
  }
}

}  // namespace

AttentionPlan plan_attention(const AttentionCall& call, int num_threads) {
  AttentionPlan plan;
  plan.tile_tokens = choose_tile_tokens(call, num_threads);
  for (int64_t s = 0; s < call.num_sequences; ++s)
    if (!is_decode(call, call.sequences[s])) add_tiles(call, call.sequences[s], plan);
  int64_t keys = 0;
  for (int64_t s = 0; s < call.num_sequences; ++s) {
    const KvSequence& sequence = call.sequences[s];
    keys +=
        sequence.num_rows * std::min(call.window > 0 ? call.window : INT64_MAX, sequence.position + sequence.num_rows);
    if (is_decode(call, sequence))
      for (int64_t i = 0; i < sequence.num_rows; ++i) plan.jobs.push_back(make_job(call, sequence, i, 1));
  }
  plan.small = keys * call.kv.num_kv_heads * call.head_dim < kSmallElements;
  cut_decode_jobs(call, plan.small ? 1 : num_threads, plan);
  return plan;
}

const AttentionJob& job_of_unit(const AttentionPlan& plan, int64_t unit) {
  const auto after = std::upper_bound(plan.jobs.begin(), plan.jobs.end(), unit,
                                      [](int64_t u, const AttentionJob& job) { return u < job.first_unit; });
  return *(after - 1);
}

}  // namespace octavo
