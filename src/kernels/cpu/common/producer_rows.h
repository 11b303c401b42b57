// What an instruction set offers for the producers: functions that do one row. producers_driver.cc holds everything
// that is the same on all of them (rows, threads, pages). Plain structs only: objects built for a newer CPU read them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/tensor_format.h"

namespace octavo {

enum class CodeKind : uint8_t { kF32, kBf16, kE4m3, kE5m2, kInt8, kKvInt8 };  // kKvInt8: sign and magnitude

// Where a row of values goes: codes, and the scale of each group of `group` columns.
struct RowTarget {
  CodeKind kind = CodeKind::kF32;
  void* codes = nullptr;  // writable up to the next multiple of 64 bytes
  float* scales = nullptr;
  int64_t cols = 0, group = 0;
  const TensorFormat* format = nullptr;  // for dynamic scales; null: scales[0] is given
};

// Where one token's k or v of one head goes.
struct KvTarget {
  CodeKind kind = CodeKind::kF32;
  std::byte* part = nullptr;             // the K or the V part of the page
  float* scale = nullptr;                // the slot's scale in the page
  const float* given = nullptr;          // a stored scale, or null
  const TensorFormat* format = nullptr;  // for a dynamic scale; null: no scale, 1 is written
  int head_dim = 0, slot = 0;
};

struct ProducerRows {
  void (*rms_norm)(const float* x, const float* weight, float eps, const RowTarget& out);
  void (*quantize)(const float* x, const RowTarget& out);
  // values: [cols], memory for the gated values. hadamard: see SiluGateCall; scale: hadamard_scale() of it.
  void (*silu_gate)(const float* gate, const float* up, float* values, int64_t hadamard, float scale,
                    const RowTarget& out);
  // heads [num_heads][head_dim] in place; norm may be null; cos_sin [head_dim] of this position.
  void (*rope)(float* heads, int num_heads, int head_dim, const float* norm, float eps, const float* cos_sin);
  void (*store_k)(const float* k, const KvTarget& out);
  void (*store_v)(const float* v, const KvTarget& out);
};

namespace avx2 {
extern const ProducerRows kProducerRows;
}
namespace avx512 {
extern const ProducerRows kProducerRows;
}

}  // namespace octavo
