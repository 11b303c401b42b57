// What the producers of every instruction set share: rows over threads, where codes and scales go, pages of K and V.
#include "kernels/cpu/common/producers_driver.h"

#include <algorithm>

#include "base/aligned.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/hadamard.h"
#include "kernels/kv_write.h"

namespace octavo {
namespace {

// Elements that one thread handles before a second one is worth waking: about a microsecond.
constexpr int64_t kGrainElements = 8192;

int64_t grain_rows(int64_t cols) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, cols));
}

CodeKind code_kind(ElementType element) {
  switch (element) {
    case ElementType::kF32:
      return CodeKind::kF32;
    case ElementType::kBf16:
      return CodeKind::kBf16;
    case ElementType::kE4m3:
      return CodeKind::kE4m3;
    case ElementType::kE5m2:
      return CodeKind::kE5m2;
    case ElementType::kInt8:
      return CodeKind::kInt8;
    default:
      OCTAVO_CHECK(false, "{} is no activation or cache element", element_name(element));
  }
}

// Memory for rows of values on each thread: gated values, and values before they are quantized.
enum RowSlot { kGated, kValues, kRowSlots };
float* row_memory(int64_t cols, RowSlot slot) {
  thread_local AlignedArray<float> memory[kRowSlots];
  const auto count = static_cast<size_t>(cols) + 16;
  if (memory[slot].size() < count) memory[slot] = AlignedArray<float>(count);
  return memory[slot].data();
}

constexpr float kOne = 1.0f;

// The values of a row as they are, before they are quantized.
RowTarget plain_target(float* values, int64_t cols) {
  return {.kind = CodeKind::kF32, .codes = values, .scales = const_cast<float*>(&kOne), .cols = cols, .group = cols};
}

// make(target) writes row r of the output to a target; where there are outlier channels, by way of its plain values.
template <class Make>
void store_made(const ProducerRows& rows, const Activation& output, int64_t r, const Make& make) {
  if (output.outlier_channels.empty()) return make(row_target(output, r));
  float* values = row_memory(output.cols, kValues);
  make(plain_target(values, output.cols));
  quantize_in_place(rows, values, output, r);
}

template <class Body>
void for_rows(int64_t num_rows, int64_t cols, ThreadPool& pool, const Body& body) {
  pool.parallel_for(num_rows, grain_rows(cols), [&](int64_t begin, int64_t end, int) {
    const DefaultFloatMode mode;
    for (int64_t r = begin; r < end; ++r) body(r);
  });
}

KvTarget kv_target(const PagedKvLayer& kv, bool is_k, int head, std::byte* page, int slot) {
  const KvPageLayout& layout = kv.layout;
  const TensorFormat& format = is_k ? kv.k_format : kv.v_format;
  const float* given = is_k ? kv.k_scales : kv.v_scales;
  const size_t scales = is_k ? layout.k_scales_offset() : layout.v_scales_offset();
  return {.kind = code_kind(is_k ? layout.k : layout.v),
          .part = is_k ? page : page + layout.v_offset(),
          .scale = reinterpret_cast<float*>(page + scales) + slot,
          .given = given == nullptr ? nullptr : given + head,
          .format = format.scaled() ? &format : nullptr,
          .head_dim = layout.head_dim,
          .slot = slot};
}

// The parts of a row of q, k and v, and the token's place.
struct RopeRow {
  float *q, *k, *v;
  int64_t position;
  const int32_t* page_table;

  RopeRow(const RopeKvCall& call, const KvSequence& sequence, int64_t i)
      : q(call.qkv + (sequence.row_begin + i) * call.stride),
        k(q + static_cast<int64_t>(call.num_heads) * call.head_dim),
        v(k + static_cast<int64_t>(call.num_kv_heads) * call.head_dim),
        position(sequence.position + i),
        page_table(sequence.page_table) {}
  int slot() const { return static_cast<int>(position % kPageTokens); }
  std::byte* page(const PagedKvLayer& kv, int head) const { return kv.page(page_table[position / kPageTokens], head); }
};

void rope_row(const ProducerRows& rows, const RopeKvCall& call, const RopeRow& row) {
  const float* cos_sin = call.cos_sin + row.position * call.head_dim;
  rows.rope(row.q, call.num_heads, call.head_dim, call.q_norm, call.eps, cos_sin);
  rows.rope(row.k, call.num_kv_heads, call.head_dim, call.k_norm, call.eps, cos_sin);
  to_cache_space(call.kv, call.num_heads, row.q, row.k);
}

// `scales`: of a rescaled cache, else null.
void store_row(const ProducerRows& rows, const RopeKvCall& call, const RopeRow& row, const BlockScales* scales) {
  const PagedKvLayer& kv = call.kv;
  for (int h = 0; h < call.num_kv_heads; ++h) {
    std::byte* page = row.page(kv, h);
    const float *k = row.k + static_cast<int64_t>(h) * call.head_dim,
                *v = row.v + static_cast<int64_t>(h) * call.head_dim;
    KvTarget to_k = kv_target(kv, true, h, page, row.slot()), to_v = kv_target(kv, false, h, page, row.slot());
    if (scales != nullptr && scales->k(row.position, h) != nullptr) to_k.given = scales->k(row.position, h);
    if (scales != nullptr && scales->v(row.position, h) != nullptr) to_v.given = scales->v(row.position, h);
    to_k.given = given_scale(kv.layout.k, to_k.given, k, call.head_dim);
    to_v.given = given_scale(kv.layout.v, to_v.given, v, call.head_dim);
    rows.store_k(k, to_k);
    rows.store_v(v, to_v);
    count_clipped(kv, row.position, h, k, v, scales);
    if (row.position < std::max(kv.k_wide, kv.v_wide)) store_wide(kv, row.page_table[0], h, row.position, k, v);
  }
}

}  // namespace

RowTarget row_target(const Activation& output, int64_t r) {
  const TensorFormat& format = output.format;
  RowTarget target{
      .kind = code_kind(format.element), .codes = output.row(r), .cols = output.cols, .group = output.cols};
  switch (format.granularity) {
    case Granularity::kNone:
      target.scales = const_cast<float*>(&kOne);  // given, so only read
      break;
    case Granularity::kTensor:
      target.scales = output.scales;
      break;
    case Granularity::kRow:
      target.scales = output.scales + r;
      target.format = &format;
      break;
    case Granularity::kBlock:
      target.scales = output.scales + r * output.scale_stride;
      target.group = format.block_cols;
      target.format = &format;
      break;
  }
  return target;
}

void quantize_in_place(const ProducerRows& rows, float* values, const Activation& output, int64_t r) {
  take_outliers(values, output, r);
  rows.quantize(values, row_target(output, r));
}

void run_rms_norm(const ProducerRows& rows, const RmsNormCall& call, ThreadPool& pool) {
  for_rows(call.output.rows, call.output.cols, pool, [&](int64_t r) {
    store_made(rows, call.output, r, [&](const RowTarget& out) {
      rows.rms_norm(call.input + r * call.input_stride, call.weight, call.eps, out);
    });
  });
}

void run_quantize(const ProducerRows& rows, const QuantizeCall& call, ThreadPool& pool) {
  for_rows(call.output.rows, call.output.cols, pool, [&](int64_t r) {
    store_made(rows, call.output, r,
               [&](const RowTarget& out) { rows.quantize(call.input + r * call.input_stride, out); });
  });
}

void run_silu_gate(const ProducerRows& rows, const SiluGateCall& call, ThreadPool& pool) {
  const int64_t cols = call.output.cols;
  OCTAVO_CHECK(call.hadamard == 0 || cols % call.hadamard == 0, "{} columns in blocks of {}", cols, call.hadamard);
  const float scale = call.hadamard > 0 ? hadamard_scale(call.hadamard) : 1.0f;
  for_rows(call.output.rows, 4 * cols, pool, [&](int64_t r) {
    const float* gate = call.input + r * call.input_stride;
    store_made(rows, call.output, r, [&](const RowTarget& out) {
      rows.silu_gate(gate, gate + cols, row_memory(cols, kGated), call.hadamard, scale, out);
    });
  });
}

void run_rope_kv(const ProducerRows& rows, const RopeKvCall& call, ThreadPool& pool) {
  OCTAVO_CHECK(call.head_dim % 2 == 0 && call.head_dim == call.kv.layout.head_dim, "head_dim {} with pages of {}",
               call.head_dim, call.kv.layout.head_dim);
  const int64_t cols = static_cast<int64_t>(call.num_heads + 2 * call.num_kv_heads) * call.head_dim;
  for (int64_t s = 0; s < call.num_sequences; ++s) {
    const KvSequence& sequence = call.sequences[s];
    if (!call.kv.layout.magnitudes) {
      for_rows(sequence.num_rows, 2 * cols, pool, [&](int64_t i) {
        const RopeRow row(call, sequence, i);
        rope_row(rows, call, row);
        store_row(rows, call, row, nullptr);
      });
      continue;
    }
    // Rescaled: the scale of a block needs the magnitudes of the one before.
    for_rows(sequence.num_rows, cols, pool, [&](int64_t i) {
      const RopeRow row(call, sequence, i);
      rope_row(rows, call, row);
      for (int h = 0; h < call.num_kv_heads; ++h)
        store_magnitudes(call.kv, row.page(call.kv, h), row.slot(), h, row.k, row.v);
    });
    const BlockScales scales(call.kv, sequence);
    for_rows(sequence.num_rows, cols, pool,
             [&](int64_t i) { store_row(rows, call, RopeRow(call, sequence, i), &scales); });
  }
}

namespace {

template <const ProducerRows& kRows>
constexpr ProducerKernels kernels(std::string_view name, Isa isa) {
  return {name,
          isa,
          [](const RmsNormCall& call, ThreadPool& pool) { run_rms_norm(kRows, call, pool); },
          [](const QuantizeCall& call, ThreadPool& pool) { run_quantize(kRows, call, pool); },
          [](const SiluGateCall& call, ThreadPool& pool) { run_silu_gate(kRows, call, pool); },
          [](const RopeKvCall& call, ThreadPool& pool) { run_rope_kv(kRows, call, pool); }};
}

}  // namespace

namespace avx2 {
extern const ProducerKernels kProducersAvx2;
const ProducerKernels kProducersAvx2 = kernels<kProducerRows>("avx2", Isa::kAvx2);
}  // namespace avx2
namespace avx512 {
extern const ProducerKernels kProducersAvx512;
const ProducerKernels kProducersAvx512 = kernels<kProducerRows>("avx512", Isa::kAvx512);
}  // namespace avx512

}  // namespace octavo
