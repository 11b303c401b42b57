#include "kernels/cpu/common/linear_driver.h"

#include <algorithm>

#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/linear_groups_simd.h"
#include "kernels/cpu/common/linear_outliers.h"
#include "kernels/cpu/common/linear_panels.h"
#include "kernels/cpu/common/linear_steps.h"
#include "parallel/handout.h"

namespace octavo {
namespace {

enum ScratchSlot { kSteps, kPrivate, kScales };

// A block of weights of this size stays in the L1 cache while the activations stream past it from L2.
constexpr int64_t kBlockWeightBytes = 24 << 10;
// Activations of one block of rows: what an L2 cache holds beside the rest.
constexpr int64_t kBlockActivationBytes = 512 << 10;
constexpr int64_t kBlockSumBytes = 256 << 10;
// Up to this many elements, every thread widens the activations for itself: that is cheaper than waiting for each
// other.
constexpr int64_t kPrivateElements = 8192;
constexpr int64_t kMostLineCols = 8;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// FP32 [cols][32], the columns rounded up to whole lines.
int64_t tile_bytes(int64_t cols) {
  return ceil_div(cols, kMostLineCols) * kMostLineCols * kPanelRows * 4;
}

// The values of nibbles as LinearTask::codes wants them.
struct NibbleValues {
  alignas(64) float values[32];
};

const float* nibble_values(const TensorFormat& format) {
  const auto values_of = [](ElementType element) {
    NibbleValues out;
    for (int i = 0; i < 32; ++i) {
      const auto code = static_cast<std::byte>(i % 16);
      out.values[i] = load_element(element, &code, 0);
    }
    return out;
  };
  static const NibbleValues kInt4 = values_of(ElementType::kInt4), kE2m1 = values_of(ElementType::kE2m1);
  static const NibbleValues kOffset = [] {
    NibbleValues out;
    for (int i = 0; i < 32; ++i) out.values[i] = static_cast<float>(i - 16);
    return out;
  }();
  if (format.zero_points) return kOffset.values;
  return format.element == ElementType::kInt4 ? kInt4.values : kE2m1.values;
}

using Range = Handout::Range;
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
  void set_groups();
  int64_t block_cols(int64_t most) const;
  int64_t scale_bytes() const;
  LinearTask with_wide_scales(LinearTask task, float* scales) const;
  // Outputs of rows [row, row + rows) and of panels [panel, panel + panels); x, sums and columns are the caller's.
  LinearTask task(int64_t row, int64_t rows, int64_t panel, int64_t panels) const;
  void direct_part(const std::byte* x, int64_t x_stride, Range panels) const;
  Range rows_of_chunk(int64_t chunk) const { return part(rows_, chunk, chunks_); }
  // The i-th panel that is wanted.
  int64_t panel_at(int64_t i) const { return call_.panels.empty() ? i : call_.panels[static_cast<size_t>(i)]; }
  // A block of columns of one panel.
  struct Place {
    int64_t panel, col0;
  };
  // Block `index` of `panels` panels, `together` of which take each block of columns before the next one.
  Place place(int64_t index, int64_t panels, int64_t together) const;
  int64_t panels_together(int64_t rows) const;
  void block_part(Range chunks, Range panels, std::byte* memory) const;
  void block_rows(Range chunks, LinearTask task, int64_t panel, int64_t col0, std::byte* sums) const;

  const LinearOps& ops_;
  const LinearCall& call_;
  ThreadPool& pool_;
  Scratch& scratch_;
  const PackedLinear& packed_;
  const int kind_;
  const int64_t rows_, cols_, panels_;  // panels that are wanted
  const size_t panel_bytes_;
  int64_t line_col_bytes_ = 0;  // bytes of a panel per column
  int64_t group_cols_ = 0;      // of a chain; 0: one chain
  int64_t w_groups_ = 0;
  int64_t chains_per_w_ = 1, chains_per_x_ = 1;  // chains that share a group of the weights, of the activations
  GroupLayout layout_{};
  const float* codes_ = nullptr;
  const float* x_scales_ = nullptr;
  int64_t chunks_ = 0;
  int64_t block_cols_ = 0;
  const std::byte* steps_ = nullptr;  // interleaved activations, chunk after chunk
};

Run::Run(const LinearOps& ops, const LinearCall& call, ThreadPool& pool, Scratch& scratch)
    : ops_(ops),
      call_(call),
      pool_(pool),
      scratch_(scratch),
      packed_(*call.weight),
      kind_(static_cast<int>(weight_kind(packed_.key.weight))),
      rows_(call.input.rows),
      cols_(packed_.key.cols),
      panels_(call.panels.empty() ? num_panels(packed_.key.rows) : std::ssize(call.panels)),
      panel_bytes_(panel_bytes(static_cast<WeightKind>(kind_), cols_)) {
  OCTAVO_CHECK(call.input.format == packed_.key.activation && call.input.cols == cols_, "{} of {} columns for {} of {}",
               call.input.format.describe(), call.input.cols, packed_.key.activation.describe(), cols_);
  OCTAVO_CHECK(std::ssize(call.input.outlier_channels) == packed_.num_outliers, "{} outlier channels for {}",
               call.input.outlier_channels.size(), packed_.num_outliers);
  line_col_bytes_ = kPanelRows * element_bits(packed_.key.weight.element) / 8;
  set_groups();
  chunks_ = ceil_div(rows_, ops.chunk_rows);
  if (ops.block[kind_] != nullptr) block_cols_ = block_cols(kBlockWeightBytes / ops.block_col_bytes[kind_]);
  set_scales();
}

void Run::set_groups() {
  const LinearKey& key = packed_.key;
  const int64_t w = weight_group_cols(key), x = key.activation.grouped() ? key.activation.block_cols : 0;
  w_groups_ = num_weight_groups(key);
  group_cols_ = w > 0 && x > 0 ? std::min(w, x) : std::max(w, x);
  if (w > 0) {
    chains_per_w_ = w / group_cols_;
    layout_ = group_layout(key.weight);
  }
  if (x > 0) chains_per_x_ = x / group_cols_;
  if (element_bits(key.weight.element) == 4) codes_ = nibble_values(key.weight);
}

// Near-equal blocks of at most `most` columns: whole groups of both sides, else a multiple of 16 columns.
int64_t Run::block_cols(int64_t most) const {
  const int64_t unit = group_cols_ * std::max(chains_per_w_, chains_per_x_);
  if (unit != 0) return std::min(cols_, std::max<int64_t>(1, most / unit) * unit);
  return std::min(cols_, ceil_div(ceil_div(cols_, ceil_div(cols_, most)), 16) * 16);
}

void Run::set_scales() {
  const Activation& x = call_.input;
  if (x.format.granularity == Granularity::kRow) {
    x_scales_ = x.scales;
    return;
  }
  auto* memory = static_cast<float*>(scratch_.get(kScales, static_cast<size_t>(rows_) * sizeof(float)));
  std::fill_n(memory, rows_, x.format.granularity == Granularity::kTensor ? x.scales[0] : 1.0f);
  x_scales_ = memory;
}

LinearTask Run::task(int64_t row, int64_t rows, int64_t panel, int64_t panels) const {
  const Activation& x = call_.input;
  const int64_t n0 = panel * kPanelRows;
  LinearTask out;
  out.panels = packed_.panels.data() + static_cast<size_t>(panel) * panel_bytes_;
  out.panel_bytes = panel_bytes_;
  out.num_panels = static_cast<int>(panels);
  out.cols = cols_;
  out.grouped = group_cols_ != 0;
  out.group_cols = out.grouped ? group_cols_ : cols_;
  out.row_scales = row_scales(packed_) + n0;
  out.groups_stride = w_groups_ * layout_.bytes;
  if (w_groups_ > 0) out.groups = packed_.groups.data() + panel * out.groups_stride;
  out.entry_bytes = layout_.bytes;
  out.scale_kind = layout_.kind;
  out.offset_at = layout_.scale_bytes;
  out.chains_per_entry = chains_per_w_;
  out.codes = codes_;
  out.corrections = packed_.corrections.empty() ? nullptr : packed_.corrections.data() + n0;
  out.bias = packed_.bias.empty() ? nullptr : packed_.bias.data() + n0;
  out.rows = static_cast<int>(rows);
  out.x_scales = x_scales_ + row;
  if (x.format.grouped()) out.x_group_scales = x.scales + row * x.scale_stride;
  out.x_group_stride = x.scale_stride;
  out.chains_per_x_scale = chains_per_x_;
  out.y = call_.output + row * call_.output_stride + n0;
  out.y_stride = call_.output_stride;
  out.num_outputs = std::min(panels * kPanelRows, packed_.key.rows - n0);
  out.accumulate = call_.accumulate;
  return out;
}

void Run::direct_part(const std::byte* x, int64_t x_stride, Range panels) const {
  // Several chunks of rows: panel by panel, so that a panel is still in the cache for the next chunk.
  const int64_t at_once = chunks_ == 1 && call_.panels.empty() ? panels.end - panels.begin : 1;
  for (int64_t panel = panels.begin; panel < panels.end; panel += at_once)
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const Range rows = rows_of_chunk(chunk);
      LinearTask one = task(rows.begin, rows.end - rows.begin, panel_at(panel), at_once);
      one.x = x + rows.begin * x_stride;
      one.x_stride = x_stride;
      ops_.direct[kind_](one);
      add_outliers(call_, rows.begin, rows.end - rows.begin, panel_at(panel), at_once);
    }
}

void Run::direct() {
  const int64_t stride = step_row_bytes(ops_.step, cols_) + 64;  // rows do not start in the same cache set
  const bool by_everyone = rows_ * cols_ <= kPrivateElements;
  const auto bytes = static_cast<size_t>(rows_ * stride);
  auto* memory =
      static_cast<std::byte*>(scratch_.get(kSteps, bytes * static_cast<size_t>(by_everyone ? pool_.size() : 1)));
  // Pieces are long enough for what is fetched ahead; few panels are shared out once.
  constexpr int64_t kPiecePanels = 8;
  const int64_t least =
      panels_ < 4 * kPiecePanels * pool_.size() ? std::max<int64_t>(1, ceil_div(panels_, pool_.size())) : kPiecePanels;
  Handout handout(panels_, pool_.size());
  pool_.run([&](int thread) {
    const DefaultFloatMode mode;
    std::byte* x = memory + (by_everyone ? bytes * static_cast<size_t>(thread) : 0);
    const Range rows = by_everyone ? Range{0, rows_} : part(rows_, thread, pool_.size());
    for (int64_t row = rows.begin; row < rows.end; ++row)
      widen_steps(ops_.step, call_.input, row, 0, cols_, x + row * stride);
    if (!by_everyone) pool_.barrier();
    for (Range panels = handout.take(least); !panels.empty(); panels = handout.take(least))
      direct_part(x, stride, panels);
  });
}

Run::Place Run::place(int64_t index, int64_t panels, int64_t together) const {
  const int64_t parts = ceil_div(cols_, block_cols_), begin = index / (together * parts) * together;
  const int64_t width = std::min(together, panels - begin), rest = index - begin * parts;
  return {begin + rest % width, rest / width * block_cols_};
}

void Run::block_rows(Range chunks, LinearTask task, int64_t panel, int64_t col0, std::byte* sums) const {
  const StepShape step = step_shape(ops_.step);
  const int64_t steps = ceil_div(cols_, step.cols), row0 = rows_of_chunk(chunks.begin).begin;
  const LinearTask first = task;
  for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    const Range rows = rows_of_chunk(chunk);
    const int64_t skipped = rows.begin - row0;
    task.rows = static_cast<int>(rows.end - rows.begin);
    task.x = steps_ + (rows.begin * steps + col0 / step.cols * task.rows) * step.bytes;
    task.x_scales = first.x_scales + skipped;
    if (first.x_group_scales != nullptr) task.x_group_scales = first.x_group_scales + skipped * first.x_group_stride;
    task.y = first.y + skipped * first.y_stride;
    task.sums = sums + skipped * kPanelRows * 4;
    ops_.block[kind_](task);
    if (task.last) add_outliers(call_, rows.begin, rows.end - rows.begin, panel, 1);
    task.next = task.panels;  // the first call has fetched everything
    task.next_step = 0;
  }
}

// Bytes of the scales of a block of columns, as FP32 for each chain.
int64_t Run::scale_bytes() const {
  return w_groups_ == 0 ? 0 : ceil_div(block_cols_, group_cols_) * kPanelRows * 4;
}

// The task of a block of columns, with its scales widened to `scales`: `block` has an entry of FP32 for each chain.
LinearTask Run::with_wide_scales(LinearTask task, float* scales) const {
  const int64_t chains = ceil_div(task.cols, group_cols_);
  for (int64_t chain = 0; chain < chains; ++chain) {
    F wide[2];
    load_scales(task.scale_kind, group_entry(task, 0, chain), wide);
    store(scales + chain * kPanelRows, wide[0]);
    store(scales + chain * kPanelRows + 16, wide[1]);
  }
  task.groups = reinterpret_cast<const std::byte*>(scales);
  task.entry_bytes = kPanelRows * 4;
  task.scale_kind = ScaleKind::kF32;
  task.chains_per_entry = 1;
  return task;
}

// Where all columns of the activations fit the L2 cache, panel after panel; else several panels for each slice of them.
int64_t Run::panels_together(int64_t rows) const {
  if (step_row_bytes(ops_.step, cols_) * rows <= kBlockActivationBytes) return 1;
  return std::max<int64_t>(1, kBlockSumBytes / (rows * kPanelRows * 4));
}

void Run::block_part(Range chunks, Range panels, std::byte* memory) const {
  const int64_t row0 = rows_of_chunk(chunks.begin).begin, rows = rows_of_chunk(chunks.end - 1).end - row0;
  const int64_t sums_per_panel = rows * kPanelRows * 4;
  const int64_t num_panels = panels.end - panels.begin, num_places = num_panels * ceil_div(cols_, block_cols_);
  const int64_t together = panels_together(rows);
  auto* scales = reinterpret_cast<float*>(memory + tile_bytes(block_cols_));
  std::byte* sums = memory + tile_bytes(block_cols_) + scale_bytes();
  const auto lines = [&](Place at) {
    return packed_.panels.data() + static_cast<size_t>(panel_at(panels.begin + at.panel)) * panel_bytes_ +
           at.col0 * line_col_bytes_;
  };
  for (int64_t i = 0; i < num_places; ++i) {
    const Place at = place(i, num_panels, together);
    LinearTask one = task(row0, rows, panel_at(panels.begin + at.panel), 1);
    one.cols = std::min(block_cols_, cols_ - at.col0);
    one.first = at.col0 == 0;
    one.last = at.col0 + one.cols == cols_;
    one.panels = lines(at);
    one.next = lines(i + 1 < num_places ? place(i + 1, num_panels, together) : at);
    one.next_step = line_col_bytes_;
    if (one.groups != nullptr) one.groups += at.col0 / (group_cols_ * chains_per_w_) * one.entry_bytes;
    if (one.x_group_scales != nullptr) one.x_group_scales += at.col0 / (group_cols_ * chains_per_x_);
    if (ops_.decode[kind_] != nullptr) {
      ops_.decode[kind_](one, memory);
      one.panels = memory;
    }
    if (one.groups != nullptr) one = with_wide_scales(one, scales);
    block_rows(chunks, one, panel_at(panels.begin + at.panel), at.col0, sums + at.panel % together * sums_per_panel);
  }
}

void Run::blocks() {
  const StepShape step = step_shape(ops_.step);
  const int64_t steps = ceil_div(cols_, step.cols);
  auto* x = static_cast<std::byte*>(scratch_.get(kSteps, static_cast<size_t>(rows_ * steps * step.bytes + 64)));
  steps_ = x;
  // Blocks of rows, each a run of chunks.
  const int64_t most_rows =
      std::max<int64_t>(ops_.chunk_rows, kBlockActivationBytes / step_row_bytes(ops_.step, block_cols_));
  const int64_t row_blocks = ceil_div(rows_, most_rows);
  const int64_t block_rows = std::min(rows_, ceil_div(chunks_, row_blocks) * ops_.chunk_rows);
  const int64_t sum_bytes = std::max<int64_t>(kBlockSumBytes, block_rows * kPanelRows * 4);
  const auto bytes =
      std::max(static_cast<size_t>(tile_bytes(block_cols_) + scale_bytes() + sum_bytes), interleave_memory());
  const size_t stride = (bytes + 4095) / 4096 * 4096 + 64;
  auto* memory = static_cast<std::byte*>(scratch_.get(kPrivate, stride * static_cast<size_t>(pool_.size())));
  // (block of rows, panel) pairs in one line.
  Handout chunks(chunks_, pool_.size()), pairs(row_blocks * panels_, pool_.size());
  pool_.run([&](int thread) {
    const DefaultFloatMode mode;
    std::byte* mine = memory + stride * static_cast<size_t>(thread);
    for (Range piece = chunks.take(1); !piece.empty(); piece = chunks.take(1))
      for (int64_t chunk = piece.begin; chunk < piece.end; ++chunk) {
        const Range rows = rows_of_chunk(chunk);
        interleave_steps(ops_.step, call_.input, rows.begin, static_cast<int>(rows.end - rows.begin), mine,
                         x + rows.begin * steps * step.bytes);
      }
    pool_.barrier();
    const int64_t together = panels_together(block_rows);
    for (Range piece = pairs.take(together); !piece.empty(); piece = pairs.take(together))
      for (int64_t item = piece.begin; item < piece.end;) {
        const int64_t block = item / panels_, end = std::min(piece.end, (block + 1) * panels_);
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
