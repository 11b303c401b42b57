#include "kernels/reference/quantize_row.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/kv_write.h"
#include "numerics/bits.h"

namespace octavo::reference {
namespace {

// Codes of `count` values that share a scale. A scale of NaN (the group held a NaN or an infinity) leaves codes 0.
void encode_group(const float* values, int64_t count, ElementType element, float scale, std::byte* codes,
                  int64_t first) {
  const float inverse = 1.0f / scale;
  for (int64_t i = 0; i < count; ++i)
    store_element(element, codes, static_cast<size_t>(first + i), is_nan(scale) ? 0.0f : values[i] * inverse);
}

// Byte or element position of (slot, dim) in a page's K part, and in its V part.
size_t k_position(const KvPageLayout& layout, int slot, int dim) {
  const size_t line = static_cast<size_t>(dim / 2) * layout.k_line();
  if (element_bits(layout.k) == 8) return line + static_cast<size_t>(panel_offset_8bit(slot, dim % 2));
  return line + static_cast<size_t>(panel_index_wide(slot, dim % 2) * element_bits(layout.k) / 8);
}
size_t v_position(const KvPageLayout& layout, int slot, int dim) {
  const size_t line =
      layout.v_offset() + static_cast<size_t>((slot / 2) * layout.v_panels() + dim / 32) * layout.v_line();
  if (element_bits(layout.v) == 8) return line + static_cast<size_t>(panel_offset_8bit(dim % 32, slot % 2));
  return line + static_cast<size_t>(panel_index_wide(dim % 32, slot % 2) * element_bits(layout.v) / 8);
}

void store_code(ElementType element, std::byte* at, float value) {
  store_element(element, at, 0, value);
  if (element == ElementType::kInt8) {
    int8_t code = 0;
    std::memcpy(&code, at, 1);
    *at = std::byte{kv_int8_code(code)};
  }
}

float load_code(ElementType element, const std::byte* at) {
  if (element == ElementType::kInt8) return static_cast<float>(kv_int8_value(std::to_integer<uint8_t>(*at)));
  return load_element(element, at, 0);
}

}  // namespace

float fold_sum(const float lanes[16]) {
  float s[16];
  std::copy(lanes, lanes + 16, s);
  for (int width = 8; width >= 1; width /= 2)
    for (int i = 0; i < width; ++i) s[i] = s[i] + s[i + width];
  return s[0];
}

float fold_max(const float lanes[16]) {
  return *std::max_element(lanes, lanes + 16);
}

float group_scale(const float* values, int64_t count, const TensorFormat& format) {
  float amax = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    if (!is_finite(values[i])) return scale_from_amax(INFINITY, format);
    amax = std::max(amax, std::fabs(values[i]));
  }
  return scale_from_amax(amax, format);
}

void store_row(const float* row, const Activation& output, int64_t r) {
  const TensorFormat& format = output.format;
  std::vector<float> rest;
  const float* values = row;
  if (!output.outlier_channels.empty()) {
    rest.assign(row, row + output.cols);
    take_outliers(rest.data(), output, r);
    values = rest.data();
  }
  switch (format.granularity) {
    case Granularity::kNone:
      for (int64_t c = 0; c < output.cols; ++c)
        store_element(format.element, output.row(r), static_cast<size_t>(c), values[c]);
      return;
    case Granularity::kTensor:
      encode_group(values, output.cols, format.element, output.scales[0], output.row(r), 0);
      return;
    case Granularity::kRow:
      output.scales[r] = group_scale(values, output.cols, format);
      encode_group(values, output.cols, format.element, output.scales[r], output.row(r), 0);
      return;
    case Granularity::kBlock:
      for (int64_t g = 0; g < output.scale_stride; ++g) {
        const int64_t first = g * format.block_cols, count = std::min<int64_t>(format.block_cols, output.cols - first);
        float& scale = output.scales[r * output.scale_stride + g];
        scale = group_scale(values + first, count, format);
        encode_group(values + first, count, format.element, scale, output.row(r), first);
      }
      return;
  }
}

void store_kv(const float* k, const float* v, const PagedKvLayer& kv, int head, std::byte* page, int slot,
              const float* k_given, const float* v_given) {
  const KvPageLayout& layout = kv.layout;
  const auto scale_of = [&](const float* values, const TensorFormat& format, const float* given, const float* stored) {
    if (!format.scaled()) return 1.0f;
    if (given == nullptr && stored != nullptr) given = stored + head;
    given = given_scale(format.element, given, values, layout.head_dim);
    return given != nullptr ? *given : group_scale(values, layout.head_dim, format);
  };
  const float k_scale = scale_of(k, kv.k_format, k_given, kv.k_scales),
              v_scale = scale_of(v, kv.v_format, v_given, kv.v_scales);
  const float k_inverse = 1.0f / k_scale, v_inverse = 1.0f / v_scale;
  for (int d = 0; d < layout.head_dim; ++d) {
    store_code(layout.k, page + k_position(layout, slot, d), is_nan(k_scale) ? 0.0f : k[d] * k_inverse);
    store_code(layout.v, page + v_position(layout, slot, d), is_nan(v_scale) ? 0.0f : v[d] * v_inverse);
  }
  std::memcpy(page + layout.k_scales_offset() + static_cast<size_t>(slot) * sizeof(float), &k_scale, sizeof(float));
  std::memcpy(page + layout.v_scales_offset() + static_cast<size_t>(slot) * sizeof(float), &v_scale, sizeof(float));
}

float load_k(const KvPageLayout& layout, const std::byte* page, int slot, int dim) {
  return load_code(layout.k, page + k_position(layout, slot, dim));
}

float load_v(const KvPageLayout& layout, const std::byte* page, int slot, int dim) {
  return load_code(layout.v, page + v_position(layout, slot, dim));
}

}  // namespace octavo::reference
