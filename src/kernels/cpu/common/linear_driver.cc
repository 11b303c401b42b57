#include "kernels/cpu/common/linear_driver.h"

#include <algorithm>

#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/linear_panels.h"
#include "kernels/cpu/common/linear_steps.h"

namespace octavo {
namespace {

enum ScratchSlot { kSteps, kPrivate, kScales };

// A tile of this many columns fits an L1 cache (32 KB), with the activations streaming past it from L2.
constexpr int64_t kTileCols = 256;
// Activations of one block of rows: what an L2 cache holds beside the rest.
constexpr int64_t kBlockActivationBytes = 512 << 10;
constexpr int64_t kBlockSumBytes = 256 << 10;
// Up to this many elements, every thread widens the activations for itself: that is cheaper than waiting for each
// other.
constexpr int64_t kPrivateElements = 8192;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

struct Range {
  int64_t begin, end;
};
// Part `index` of `parts` near-equal parts of [0, n).
Range part(int64_t n, int64_t index, int64_t parts) {
  return {n * index / parts, n * (index + 1) / parts};
}

class Run {
 public:
  Run(const LinearOps& ops, const LinearCall& call, ThreadPool& pool, Scratch& scratch);
  void direct();
  void blocks();
  bool few_rows() const { return rows_ <= ops_.direct_rows || ops_.block[kind_] == nullptr; }

 private:
  void set_scales();
  // Outputs of rows [row, row + rows) and of panels [panel, panel + panels); x, sums and columns are the caller's.
  LinearTask task(int64_t row, int64_t rows, int64_t panel, int64_t panels) const;
  void direct_part(const std::byte* x, int64_t x_stride, Range panels) const;
  Range rows_of_chunk(int64_t chunk) const { return part(rows_, chunk, chunks_); }
  void block_part(Range chunks, Range panels, std::byte* memory) const;
  void tiles(Range chunks, Range panels, std::byte* memory) const;
  void tile(Range chunks, LinearTask task, const float* tile, int64_t col0, float* sums) const;

  const LinearOps& ops_;
  const LinearCall& call_;
  ThreadPool& pool_;
  Scratch& scratch_;
  const PackedLinear& packed_;
  const int kind_;
  const int64_t rows_, cols_, panels_;
  const size_t panel_bytes_;
  int64_t group_cols_ = 0;  // 0: one chain
  int64_t w_groups_ = 0;
  const float* ones_ = nullptr;  // for the sides that have no scale
  const float* x_scales_ = nullptr;
  int64_t chunks_ = 0;
  int64_t tile_cols_ = 0;
  const std::byte* steps_ = nullptr;  // interleaved activations, chunk after chunk
};

Run::Run(const LinearOps& ops, const LinearCall& call, ThreadPool& pool, Scratch& scratch)
    : ops_(ops),
      call_(call),
      pool_(pool),
      scratch_(scratch),
      packed_(*call.weight),
      kind_(static_cast<int>(weight_kind(packed_.key.weight.element))),
      rows_(call.input.rows),
      cols_(packed_.key.cols),
      panels_(num_panels(packed_.key.rows)),
      panel_bytes_(panel_bytes(static_cast<WeightKind>(kind_), cols_)) {
  OCTAVO_CHECK(call.input.format == packed_.key.activation && call.input.cols == cols_, "{} of {} columns for {} of {}",
               call.input.format.describe(), call.input.cols, packed_.key.activation.describe(), cols_);
  w_groups_ = num_weight_groups(packed_.key);
  group_cols_ = weight_group_cols(packed_.key);
  if (call.input.format.granularity == Granularity::kBlock) group_cols_ = call.input.format.block_cols;
  chunks_ = ceil_div(rows_, ops.block_rows);
  tile_cols_ = group_cols_ == 0 ? kTileCols : std::max<int64_t>(1, kTileCols / group_cols_) * group_cols_;
  tile_cols_ = std::min(tile_cols_, cols_);
  set_scales();
}

void Run::set_scales() {
  const Activation& x = call_.input;
  const int64_t groups = group_cols_ == 0 ? 1 : ceil_div(cols_, group_cols_);
  const int64_t count = std::max(rows_, groups);
  auto* memory = static_cast<float*>(scratch_.get(kScales, static_cast<size_t>(count + rows_) * sizeof(float)));
  std::fill_n(memory, count, 1.0f);
  ones_ = memory;
  x_scales_ = ones_;
  if (x.format.granularity == Granularity::kRow) x_scales_ = x.scales;
  if (x.format.granularity == Granularity::kTensor) {
    std::fill_n(memory + count, rows_, x.scales[0]);
    x_scales_ = memory + count;
  }
}

LinearTask Run::task(int64_t row, int64_t rows, int64_t panel, int64_t panels) const {
  const Activation& x = call_.input;
  const bool x_grouped = x.format.granularity == Granularity::kBlock;
  const int64_t n0 = panel * kPanelRows;
  LinearTask out;
  out.panels = packed_.panels.data() + static_cast<size_t>(panel) * panel_bytes_;
  out.panel_bytes = panel_bytes_;
  out.num_panels = static_cast<int>(panels);
  out.cols = cols_;
  out.grouped = group_cols_ != 0;
  out.group_cols = out.grouped ? group_cols_ : cols_;
  out.row_scales = row_scales(packed_) + n0;
  out.group_scales = w_groups_ > 0 ? group_scales(packed_) + panel * w_groups_ : ones_;
  out.group_scale_stride = w_groups_;
  out.corrections = packed_.corrections.empty() ? nullptr : packed_.corrections.data() + n0;
  out.bias = packed_.bias.empty() ? nullptr : packed_.bias.data() + n0;
  out.rows = static_cast<int>(rows);
  out.x_scales = x_scales_ + row;
  out.x_group_scales = x_grouped ? x.scales + row * x.scale_stride : ones_;
  out.x_group_stride = x_grouped ? x.scale_stride : 0;
  out.y = call_.output + row * call_.output_stride + n0;
  out.y_stride = call_.output_stride;
  out.num_outputs = std::min(panels * kPanelRows, packed_.key.rows - n0);
  out.accumulate = call_.accumulate;
  return out;
}

void Run::direct_part(const std::byte* x, int64_t x_stride, Range panels) const {
  // Several chunks of rows: panel by panel, so that a panel is still in the cache for the next chunk.
  const int64_t at_once = chunks_ == 1 ? panels.end - panels.begin : 1;
  for (int64_t panel = panels.begin; panel < panels.end; panel += at_once)
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const Range rows = rows_of_chunk(chunk);
      LinearTask one = task(rows.begin, rows.end - rows.begin, panel, at_once);
      one.x = x + rows.begin * x_stride;
      one.x_stride = x_stride;
      ops_.direct[kind_](one);
    }
}

void Run::direct() {
  const int64_t stride = step_row_bytes(ops_.step, cols_) + 64;  // rows do not start in the same cache set
  const bool by_everyone = rows_ * cols_ <= kPrivateElements;
  const auto bytes = static_cast<size_t>(rows_ * stride);
  auto* memory =
      static_cast<std::byte*>(scratch_.get(kSteps, bytes * static_cast<size_t>(by_everyone ? pool_.size() : 1)));
  pool_.run([&](int thread) {
    const DefaultFloatMode mode;
    std::byte* x = memory + (by_everyone ? bytes * static_cast<size_t>(thread) : 0);
    const Range rows = by_everyone ? Range{0, rows_} : part(rows_, thread, pool_.size());
    for (int64_t row = rows.begin; row < rows.end; ++row)
      widen_steps(ops_.step, call_.input, row, 0, cols_, x + row * stride);
    if (!by_everyone) pool_.barrier();
    const Range panels = part(panels_, thread, pool_.size());
    if (panels.begin < panels.end) direct_part(x, stride, panels);
  });
}

void Run::tile(Range chunks, LinearTask task, const float* tile, int64_t col0, float* sums) const {
  const int64_t row0 = rows_of_chunk(chunks.begin).begin;
  const LinearTask first = task;
  for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    const Range rows = rows_of_chunk(chunk);
    const int64_t skipped = rows.begin - row0;
    task.panels = reinterpret_cast<const std::byte*>(tile);
    task.rows = static_cast<int>(rows.end - rows.begin);
    task.x = steps_ + (rows.begin * cols_ + col0 * task.rows) * 4;
    task.x_scales = first.x_scales + skipped;
    task.x_group_scales = first.x_group_scales + skipped * first.x_group_stride;
    task.y = first.y + skipped * first.y_stride;
    task.sums = sums + skipped * kPanelRows;
    ops_.block[kind_](task);
  }
}

void Run::tiles(Range chunks, Range panels, std::byte* memory) const {
  const Range rows{rows_of_chunk(chunks.begin).begin, rows_of_chunk(chunks.end - 1).end};
  const int64_t num_rows = rows.end - rows.begin, sums_per_panel = num_rows * kPanelRows;
  auto* decoded = reinterpret_cast<float*>(memory);
  float* sums = decoded + (tile_cols_ + 1) * kPanelRows;
  const int64_t together = std::max<int64_t>(1, kBlockSumBytes / 4 / sums_per_panel);
  for (int64_t begin = panels.begin; begin < panels.end; begin += together)
    for (int64_t col0 = 0; col0 < cols_; col0 += tile_cols_)
      for (int64_t panel = begin; panel < std::min(panels.end, begin + together); ++panel) {
        LinearTask one = task(rows.begin, num_rows, panel, 1);
        one.cols = std::min(tile_cols_, cols_ - col0);
        one.first = col0 == 0;
        one.last = col0 + one.cols == cols_;
        const std::byte* lines = one.panels + static_cast<size_t>(col0 / 2) * (panel_bytes_ / ((cols_ + 1) / 2));
        if (one.grouped) {
          one.group_scales += w_groups_ > 0 ? col0 / group_cols_ : 0;
          one.x_group_scales += one.x_group_stride > 0 ? col0 / group_cols_ : 0;
        }
        const float* source = reinterpret_cast<const float*>(lines);
        if (ops_.decode[kind_] != nullptr) {
          ops_.decode[kind_](lines, one.cols, decoded);
          source = decoded;
        }
        tile(chunks, one, source, col0, sums + (panel - begin) * sums_per_panel);
      }
}

void Run::block_part(Range chunks, Range panels, std::byte* memory) const {
  if (ops_.tiled) return tiles(chunks, panels, memory);
  const int64_t steps = ceil_div(cols_, step_shape(ops_.step).cols);
  alignas(64) float sums[16 * kPanelRows];
  for (int64_t panel = panels.begin; panel < panels.end; ++panel)
    for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      const Range rows = rows_of_chunk(chunk);
      LinearTask one = task(rows.begin, rows.end - rows.begin, panel, 1);
      one.x = steps_ + rows.begin * steps * 4;
      one.sums = sums;
      ops_.block[kind_](one);
    }
}

void Run::blocks() {
  const StepShape shape = step_shape(ops_.step);
  const int64_t steps = ceil_div(cols_, shape.cols);
  const int64_t steps_at_once = ops_.tiled ? tile_cols_ : steps;
  auto* x = static_cast<std::byte*>(scratch_.get(kSteps, static_cast<size_t>(rows_ * steps * 4 + 64)));
  steps_ = x;
  // Blocks of rows, each a run of chunks.
  const int64_t most_rows = std::max<int64_t>(ops_.block_rows, kBlockActivationBytes / (4 * steps_at_once));
  const int64_t row_blocks = ceil_div(rows_, most_rows);
  const int64_t most_chunks = ceil_div(chunks_, row_blocks);
  const int64_t sum_rows = std::min<int64_t>(rows_, most_chunks * ops_.block_rows);
  const int64_t sum_bytes = std::max<int64_t>(kBlockSumBytes, sum_rows * kPanelRows * 4);
  const int64_t tile_bytes = (tile_cols_ + 1) * kPanelRows * 4;
  const auto bytes = std::max((ops_.tiled ? static_cast<size_t>(sum_bytes + tile_bytes) : 0), interleave_memory());
  const size_t stride = (bytes + 4095) / 4096 * 4096 + 64;
  auto* memory = static_cast<std::byte*>(scratch_.get(kPrivate, stride * static_cast<size_t>(pool_.size())));
  pool_.run([&](int thread) {
    const DefaultFloatMode mode;
    std::byte* mine = memory + stride * static_cast<size_t>(thread);
    const Range packed = part(chunks_, thread, pool_.size());
    for (int64_t chunk = packed.begin; chunk < packed.end; ++chunk) {
      const Range rows = rows_of_chunk(chunk);
      interleave_steps(ops_.step, call_.input, rows.begin, static_cast<int>(rows.end - rows.begin), mine,
                       x + rows.begin * steps * 4);
    }
    pool_.barrier();
    // (row block, panel) pairs in one line, cut into near-equal pieces.
    const Range items = part(row_blocks * panels_, thread, pool_.size());
    for (int64_t item = items.begin; item < items.end;) {
      const int64_t block = item / panels_, end = std::min(items.end, (block + 1) * panels_);
      block_part(part(chunks_, block, row_blocks), {item % panels_, end - block * panels_}, mine);
      item = end;
    }
  });
}

}  // namespace

void run_linear(const LinearOps& ops, const LinearCall& call, ThreadPool& pool, Scratch& scratch) {
  if (call.input.rows == 0) return;
  Run run(ops, call, pool, scratch);
  run.few_rows() ? run.direct() : run.blocks();
}

}  // namespace octavo
