// What the attention of every instruction set shares: pages to blocks of keys, units to threads, states to outputs.

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/attention.h"
#include "kernels/cpu/common/attention_plan.h"
#include "kernels/cpu/common/attention_rows.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/producers_driver.h"
#include "kernels/math.h"

namespace octavo {
namespace {

enum ScratchSlot { kThreadMemory, kOutputs, kStates, kCounters };

// A scale that is computed when a token is written takes the NaN of its group, whose codes are then 0; codes made with
// a given scale can be NaN.
KvKind kv_kind(ElementType element, const TensorFormat& format, const float* given_scales) {
  static const bool has_gfni = __builtin_cpu_supports("gfni") != 0;
  const bool finite = has_gfni && format.scaled() && given_scales == nullptr;
  switch (element) {
    case ElementType::kF32:
      return KvKind::kF32;
    case ElementType::kBf16:
      return KvKind::kBf16;
    case ElementType::kE4m3:
      return finite ? KvKind::kFiniteE4m3 : KvKind::kE4m3;
    case ElementType::kE5m2:
      return finite ? KvKind::kFiniteE5m2 : KvKind::kE5m2;
    case ElementType::kInt8:
      return KvKind::kInt8;
    default:
      OCTAVO_CHECK(false, "{} is no cache element", element_name(element));
  }
}

int64_t round_up(int64_t n, int64_t step) {
  return (n + step - 1) / step * step;
}

// Hands out pieces of a block of floats, each on its own cache lines; with a null base it only counts.
class Pieces {
 public:
  explicit Pieces(float* base) : base_(base) {}
  float* take(int64_t count) {
    float* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += round_up(count, 16);
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

struct ThreadMemory {
  AttentionMemory kernel;
  SoftmaxState total, block;
  const AttentionJob* queries_of = nullptr;  // what kernel.queries holds
  int queries_head = -1;
};

class AttentionRun {
 public:
  AttentionRun(const AttentionRows& rows, const ProducerRows& producers, const AttentionCall& call, ThreadPool& pool,
               Scratch& scratch)
      : rows_(rows),
        producers_(producers),
        call_(call),
        pool_(pool),
        plan_(plan_attention(call, pool.size())),
        group_(call.num_heads / call.kv.num_kv_heads) {
    const KvPageLayout& layout = call.kv.layout;
    shape_ = {.k = kv_kind(layout.k, call.kv.k_format, call.kv.k_scales),
              .v = kv_kind(layout.v, call.kv.v_format, call.kv.v_scales),
              .head_dim = call.head_dim,
              .v_panels = layout.v_panels(),
              .v_offset = layout.v_offset(),
              .k_scales_offset = layout.k_scales_offset(),
              .v_scales_offset = layout.v_scales_offset(),
              .scale = call.scale * kLog2E,
              .k_wide = call.kv.k_wide,
              .v_wide = call.kv.v_wide};
    allocate(scratch);
  }

  void run() {
    if (plan_.small) {
      const DefaultFloatMode mode;
      for (int64_t unit = 0; unit < plan_.num_units; ++unit) run_unit(unit, 0);
      return;
    }
    pool_.parallel_items(plan_.num_units, [this](int64_t unit, int thread) {
      const DefaultFloatMode mode;
      run_unit(unit, thread);
    });
  }

 private:
  int64_t width() const { return static_cast<int64_t>(call_.num_heads) * call_.head_dim; }
  int num_kv_heads() const { return call_.kv.num_kv_heads; }

  SoftmaxState take_state(Pieces& pieces, int64_t rows) const {
    return {pieces.take(round_up(rows, 16)), pieces.take(round_up(rows, 16)), pieces.take(rows * 32 * shape_.v_panels)};
  }

  ThreadMemory take_thread(Pieces& pieces) const {
    const int64_t rows = plan_.tile_tokens * group_, dims = round_up(call_.head_dim, 2);
    ThreadMemory memory;
    memory.kernel = {.queries = pieces.take(((dims - 1) / kQueryChunk + 1) * (rows + 16) * kQueryStride),
                     .k_tile = pieces.take(kAttentionBlock * dims),
                     .v_tile = pieces.take(kAttentionBlock * 32 * shape_.v_panels),
                     .k_factors = pieces.take(kAttentionBlock),
                     .v_factors = pieces.take(kAttentionBlock),
                     .scores = pieces.take(16 * kAttentionBlock)};
    memory.total = take_state(pieces, rows);
    memory.block = take_state(pieces, group_);
    return memory;
  }

  void allocate(Scratch& scratch) {
    Pieces counted(nullptr);
    take_thread(counted);
    const int64_t per_thread = round_up(counted.used(), 1024) + 16;  // not a multiple of 4 KB apart
    auto* base =
        static_cast<float*>(scratch.get(kThreadMemory, static_cast<size_t>(per_thread * pool_.size()) * sizeof(float)));
    threads_.resize(static_cast<size_t>(pool_.size()));
    for (int i = 0; i < pool_.size(); ++i) {
      Pieces pieces(base + i * per_thread);
      threads_[static_cast<size_t>(i)] = take_thread(pieces);
    }
    outputs_ =
        static_cast<float*>(scratch.get(kOutputs, static_cast<size_t>(call_.output.rows * width()) * sizeof(float)));
    Pieces state(nullptr);
    take_state(state, group_);
    state_size_ = state.used();
    states_ =
        static_cast<float*>(scratch.get(kStates, static_cast<size_t>(state_size_ * plan_.num_states) * sizeof(float)));
    const int64_t num_jobs = static_cast<int64_t>(plan_.jobs.size());
    heads_left_ = static_cast<int32_t*>(
        scratch.get(kCounters, static_cast<size_t>(num_jobs * (1 + num_kv_heads())) * sizeof(int32_t)));
    units_left_ = heads_left_ + num_jobs;
    for (int64_t j = 0; j < num_jobs; ++j) {
      heads_left_[j] = num_kv_heads();
      for (int h = 0; h < num_kv_heads(); ++h)
        units_left_[j * num_kv_heads() + h] = static_cast<int32_t>(plan_.jobs[static_cast<size_t>(j)].units_per_head);
    }
  }

  SoftmaxState state(const AttentionJob& job, int head, int64_t block) const {
    Pieces pieces(states_ + (job.first_state + head * job.num_blocks + block - job.first_block) * state_size_);
    return take_state(pieces, group_);
  }

  // The keys of a block that the tokens of a job see.
  KeyBlock key_block(const AttentionJob& job, int head, int64_t block) const {
    const int64_t start = block * kAttentionBlock, last = job.position() + job.num_tokens;
    const int64_t first_key = call_.window > 0 ? job.position() - call_.window + 1 : 0;
    KeyBlock keys;
    keys.begin = static_cast<int>(std::max<int64_t>(0, first_key - start));
    keys.end = static_cast<int>(std::min<int64_t>(kAttentionBlock, last - start));
    const int32_t* table = job.sequence->page_table + start / kPageTokens;
    for (int page = keys.begin / kPageTokens; page * kPageTokens < keys.end; ++page)
      keys.pages[page] = call_.kv.page(table[page], head);
    if (block == 0 && keys.begin < std::max(call_.kv.k_wide, call_.kv.v_wide))
      keys.wide = call_.kv.wide_tokens(table[0], head);
    return keys;
  }

  void load_queries(const AttentionJob& job, int head, ThreadMemory& memory) const {
    if (memory.queries_of == &job && memory.queries_head == head) return;
    memory.queries_of = &job;
    memory.queries_head = head;
    rows_.load_queries(shape_,
                       call_.q + job.row() * call_.q_stride + static_cast<int64_t>(head) * group_ * call_.head_dim,
                       call_.q_stride, static_cast<int>(job.num_tokens), group_, memory.kernel);
  }

  void run_unit(int64_t unit, int thread) {
    const AttentionJob& job = job_of_unit(plan_, unit);
    const int64_t in_job = unit - job.first_unit;
    const auto head = static_cast<int>(in_job / job.units_per_head);
    ThreadMemory& memory = threads_[static_cast<size_t>(thread)];
    load_queries(job, head, memory);
    if (job.tile) {
      run_tile(job, head, memory);
    } else if (job.split()) {
      const int64_t begin = job.first_block + in_job % job.units_per_head * job.unit_blocks;
      run_blocks(job, head, begin, std::min(begin + job.unit_blocks, job.first_block + job.num_blocks), memory);
    } else {
      run_whole(job, head, memory);
    }
    finish_unit(job, head);
  }

  void run_tile(const AttentionJob& job, int head, ThreadMemory& memory) {
    AttentionTile tile{.rows = static_cast<int>(job.num_tokens) * group_,
                       .group = group_,
                       .first_position = job.position(),
                       .window = call_.window};
    for (int64_t block = job.first_block; block < job.first_block + job.num_blocks; ++block) {
      tile.block_start = block * kAttentionBlock;
      rows_.load_block(shape_, key_block(job, head, block), memory.kernel);
      rows_.attend_tile(shape_, tile, memory.kernel, memory.total);
    }
    write_output(job, head, memory.total);
  }

  // Blocks [begin, end) of a decode job, each into its own state.
  void run_blocks(const AttentionJob& job, int head, int64_t begin, int64_t end, ThreadMemory& memory) {
    KeyBlock keys = key_block(job, head, begin);
    for (int64_t block = begin; block < end; ++block) {
      const KeyBlock next = block + 1 < end ? key_block(job, head, block + 1) : KeyBlock{};
      rows_.attend_block(shape_, keys, &next, group_, memory.kernel, state(job, head, block));
      keys = next;
    }
  }

  void run_whole(const AttentionJob& job, int head, ThreadMemory& memory) {
    const int64_t end = job.first_block + job.num_blocks;
    KeyBlock keys = key_block(job, head, job.first_block);
    for (int64_t block = job.first_block; block < end; ++block) {
      const KeyBlock next = block + 1 < end ? key_block(job, head, block + 1) : KeyBlock{};
      const bool first = block == job.first_block;
      rows_.attend_block(shape_, keys, &next, group_, memory.kernel, first ? memory.total : memory.block);
      if (!first) rows_.merge(shape_, memory.total, memory.block, group_);
      keys = next;
    }
    write_output(job, head, memory.total);
  }

  // The last unit of a head merges its blocks; the last head of a job quantizes its rows.
  void finish_unit(const AttentionJob& job, int head) {
    const int64_t index = &job - plan_.jobs.data();
    if (job.split()) {
      std::atomic_ref<int32_t> units(units_left_[index * num_kv_heads() + head]);
      if (units.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
      const SoftmaxState total = state(job, head, job.first_block);
      for (int64_t block = job.first_block + 1; block < job.first_block + job.num_blocks; ++block)
        rows_.merge(shape_, total, state(job, head, block), group_);
      write_output(job, head, total);
    }
    std::atomic_ref<int32_t> heads(heads_left_[index]);
    if (heads.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    for (int64_t row = job.row(); row < job.row() + job.num_tokens; ++row)
      quantize_in_place(producers_, outputs_ + row * width(), call_.output, row);
  }

  void write_output(const AttentionJob& job, int head, const SoftmaxState& total) {
    rows_.finish(shape_, total, static_cast<int>(job.num_tokens), group_,
                 outputs_ + job.row() * width() + static_cast<int64_t>(head) * group_ * call_.head_dim, width());
  }

  const AttentionRows& rows_;
  const ProducerRows& producers_;
  const AttentionCall& call_;
  ThreadPool& pool_;
  const AttentionPlan plan_;
  const int group_;
  AttentionShape shape_;
  std::vector<ThreadMemory> threads_;
  float* outputs_ = nullptr;  // [rows, num_heads x head_dim], before quantization
  float* states_ = nullptr;
  int64_t state_size_ = 0;
  int32_t *heads_left_ = nullptr, *units_left_ = nullptr;  // [jobs], [jobs][KV heads]
};

std::string accepts_any(const AttentionKey& key) {
  for (const ElementType element : {key.k, key.v})
    if (element != ElementType::kF32 && element != ElementType::kBf16 && element != ElementType::kE4m3 &&
        element != ElementType::kE5m2 && element != ElementType::kInt8)
      return fmt::format("keys or values of {}", element_name(element));
  if (key.head_dim % 2 != 0) return fmt::format("head dimension {} is odd", key.head_dim);
  return {};
}

std::string accepts_bf16(const AttentionKey& key) {
  if (key.k == ElementType::kF32 || key.v == ElementType::kF32) return "float32 keys or values do not fit BF16 pairs";
  return accepts_any(key);
}

template <const AttentionRows& kRows, const ProducerRows& kProducers>
void run(const AttentionCall& call, ThreadPool& pool, Scratch& scratch) {
  if (call.num_sequences > 0) AttentionRun(kRows, kProducers, call, pool, scratch).run();
}

}  // namespace

namespace avx2 {
extern const AttentionKernel kAttentionAvx2;
const AttentionKernel kAttentionAvx2{"avx2/fma", Isa::kAvx2, accepts_any, run<kAttentionRows, kProducerRows>};
}  // namespace avx2
namespace avx512 {
extern const AttentionKernel kAttentionAvx512;
const AttentionKernel kAttentionAvx512{"avx512/fma", Isa::kAvx512, accepts_any, run<kAttentionRows, kProducerRows>};
}  // namespace avx512
namespace avx512_bf16 {
extern const AttentionKernel kAttentionAvx512Bf16;
const AttentionKernel kAttentionAvx512Bf16{"avx512_bf16/dot", Isa::kAvx512Bf16, accepts_bf16,
                                           run<kAttentionRows, avx512::kProducerRows>};
}  // namespace avx512_bf16

}  // namespace octavo
