// What an instruction set offers for linear layers, and what one call into it is told. linear_driver.cc holds
// everything that is the same on all of them (threads, scratch, order of the work). Plain structs only: objects built
// for a newer CPU read them. Layouts are described in docs/kernels.md, "panels".
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

inline constexpr int kPanelRows = 32;

enum class WeightKind : uint8_t { kF32, kBf16, kE4m3, kInt8 };
inline constexpr int kNumWeightKinds = 4;

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
  int64_t group_cols = 0;  // even
  const float* row_scales = nullptr;     // [32 x num_panels]
  const float* group_scales = nullptr;   // [num_panels][groups], from this task's first group
  int64_t group_scale_stride = 0;        // from one panel to the next
  const int32_t* corrections = nullptr;  // INT8: [32 x num_panels], -128 x sum of the weights of each row
  const float* bias = nullptr;           // [32 x num_panels], readable to the end of the last panel; or null

  int rows = 0;
  const std::byte* x = nullptr;           // steps: row-major, or [step][rows] (see LinearOps)
  int64_t x_stride = 0;                   // row-major: bytes from one row to the next
  const float* x_scales = nullptr;        // [rows]
  const float* x_group_scales = nullptr;  // [rows][groups], from this task's first group
  int64_t x_group_stride = 0;

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
  // between the blocks. Null where `direct` serves every number of rows.
  void (*block[kNumWeightKinds])(const LinearTask& task);
  // Bytes of one column of what `block` reads.
  int block_col_bytes[kNumWeightKinds];
  // Writes a tile [cols][32] in FP32 (`cols` rounded up to even) from a panel's lines; null where `block` reads lines.
  void (*decode[kNumWeightKinds])(const std::byte* lines, int64_t cols, float* tile);
};

}  // namespace octavo
