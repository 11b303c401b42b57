// What an instruction set offers for linear layers, and what one call into it is told. linear_driver.cc holds
// everything that is the same on all of them (threads, scratch, order of the work). Plain structs only: objects built
// for a newer CPU read them. Layouts are described in docs/kernels.md, "panels".
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

inline constexpr int kPanelRows = 32;

enum class WeightKind : uint8_t {
  kF32,
  kBf16,
  kE4m3,
  kInt8,
  kNibbles,        // INT4, E2M1: a code is an index into LinearTask::codes
  kOffsetNibbles,  // INT4 with zero points: code + 8, and 8 - zero beside each scale; index = their sum
};
inline constexpr int kNumWeightKinds = 6;

// What stands for each group of columns of a panel.
enum class ScaleKind : uint8_t {
  kPanel,  // one FP32 scale for all 32 rows
  kF32,    // and these: a scale for each row, as narrow as it was stored
  kF16,
  kBf16,
  kE8m0,
  kE4m3,
};

// What activation codes are turned into before the product. A step is what one instruction takes from a row of x.
enum class StepKind : uint8_t {
  kFloat,  // one column as FP32
  kBf16,   // two columns as BF16, 4 bytes
  kUint8,  // four columns, x + 128 as unsigned bytes
  kInt16,  // four columns as 16-bit integers, 8 bytes
};

// rows x (32 x num_panels) outputs, over `cols` columns of K.
struct LinearTask {
  const std::byte* panels = nullptr;  // the first panel, at this task's first column; or a decoded tile
  size_t panel_bytes = 0;             // from one panel to the next
  int num_panels = 1;
  int64_t cols = 0;
  bool grouped = false;    // chains of group_cols columns, each scaled on its own; else one chain over all columns
  int64_t group_cols = 0;  // whole lines
  const float* row_scales = nullptr;  // [32 x num_panels]
  // What the weights' groups have beside their codes: [num_panels][groups] entries of `entry_bytes`, from this task's
  // first group: scales, then (kOffsetNibbles) 32 bytes of offsets. Null: the weights are not grouped along K.
  const std::byte* groups = nullptr;
  int64_t entry_bytes = 0, groups_stride = 0;  // the second from one panel to the next
  ScaleKind scale_kind = ScaleKind::kPanel;
  int64_t offset_at = 0;                 // of the offsets in an entry
  int64_t chains_per_entry = 1;          // where the activations' groups are finer
  const float* codes = nullptr;          // [32]: the value of each nibble, twice; of index 0..31 for kOffsetNibbles
  const int32_t* corrections = nullptr;  // INT8: [32 x num_panels], -128 x sum of the weights of each row
  const float* bias = nullptr;           // [32 x num_panels], readable to the end of the last panel; or null

  int rows = 0;
  const std::byte* x = nullptr;           // steps: row-major, or [step][rows] (see LinearOps)
  int64_t x_stride = 0;                   // row-major: bytes from one row to the next
  const float* x_scales = nullptr;        // [rows]
  const float* x_group_scales = nullptr;  // [rows][groups], from this task's first group; null: not grouped along K
  int64_t x_group_stride = 0;
  int64_t chains_per_x_scale = 1;  // where the weights' groups are finer

  float* y = nullptr;
  int64_t y_stride = 0;
  int64_t num_outputs = 0;  // columns of y that exist, at most 32 x num_panels
  bool accumulate = false;

  // `block`: lines to fetch into the L2 cache meanwhile, this many bytes for each column.
  const std::byte* next = nullptr;
  int64_t next_step = 0;

  // `block`: sums between the blocks of columns of one panel, [rows][32]: chains (not grouped) or totals (grouped),
  // FP32 or INT32.
  void* sums = nullptr;
  bool first = true, last = true;  // this block of columns; the last one writes y
};

struct LinearOps {
  StepKind step;
  int direct_rows;  // up to this many rows: `direct`
  int chunk_rows;   // most rows of one call, at most 16
  // Few rows: weights decoded in registers, several panels side by side. x is row-major.
  void (*direct[kNumWeightKinds])(const LinearTask& task);
  // Many rows: a block of columns of one panel (lines, or a decoded tile) against x [step][rows], with `sums` kept
  // between the blocks. Scales of groups come as FP32, an entry for each chain. Null where `direct` serves every number
  // of rows.
  void (*block[kNumWeightKinds])(const LinearTask& task);
  // Bytes of one column of what `block` reads.
  int block_col_bytes[kNumWeightKinds];
  // Writes a tile of whole lines from those of task.panels: what `block` reads. Null where that is the lines.
  void (*decode[kNumWeightKinds])(const LinearTask& task, void* tile);
};

}  // namespace octavo
