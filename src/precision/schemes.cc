// The named schemes: one row each.
#include "precision/schemes.h"

#include <fmt/format.h>

namespace octavo {
namespace {

constexpr auto kE4 = ElementType::kE4m3, kE2 = ElementType::kE2m1, kBf16 = ElementType::kBf16;

TensorFormat plain(ElementType element) {
  return plain_format(element);
}

const std::vector<Scheme>& table() {
  static const std::vector<Scheme> kSchemes = {
      {"float32", "weights, activations and KV cache FP32: the oracle", plain(ElementType::kF32),
       plain(ElementType::kF32), plain(ElementType::kF32)},
      {"bf16", "weights, activations and KV cache BF16", plain(ElementType::kBf16), plain(ElementType::kBf16),
       plain(ElementType::kBf16)},
      {"fp8", "E4M3 weights per channel, E4M3 activations per token, E4M3 KV cache", weight_format(row_format(kE4)),
       row_format(kE4), row_format(kE4)},
      {"fp8-weight", "E4M3 weights per channel; activations and KV cache BF16", weight_format(row_format(kE4)),
       plain(ElementType::kBf16), plain(ElementType::kBf16)},
      {"fp8-block", "E4M3 weights per 128x128 block, E4M3 activations per 1x128, E4M3 KV cache",
       weight_format(block_format(kE4, 128, 128)), block_format(kE4, 1, 128), row_format(kE4)},
      {"fp8-block-ue8m0", "fp8-block with power-of-two scales",
       weight_format(block_format(kE4, 128, 128, ElementType::kE8m0)), block_format(kE4, 1, 128, ElementType::kE8m0),
       row_format(kE4)},
      {"fp8-tensor", "E4M3 weights per tensor, E4M3 activations per token, E4M3 KV cache",
       weight_format(tensor_wide_format(kE4)), row_format(kE4), row_format(kE4)},
      {"fp8-static", "E4M3 weights per tensor, E4M3 activations with one calibrated scale, E4M3 KV cache",
       weight_format(tensor_wide_format(kE4)), weight_format(tensor_wide_format(kE4)), row_format(kE4)},
      {"int8", "INT8 weights per channel, INT8 activations per token, INT8 KV cache",
       weight_format(row_format(ElementType::kInt8)), row_format(ElementType::kInt8), row_format(ElementType::kInt8)},
      {"int4", "INT4 weights per group of 128, symmetric; activations and KV cache BF16",
       weight_format(group_format(ElementType::kInt4, 128, ElementType::kF16)), plain(kBf16), plain(kBf16)},
      {"int4-g32", "int4 with groups of 32", weight_format(group_format(ElementType::kInt4, 32, ElementType::kF16)),
       plain(kBf16), plain(kBf16)},
      {"int4-zp", "int4 with zero points",
       weight_format(group_format(ElementType::kInt4, 128, ElementType::kF16, true)), plain(kBf16), plain(kBf16)},
      {"int4-g32-zp", "int4 with groups of 32 and zero points",
       weight_format(group_format(ElementType::kInt4, 32, ElementType::kF16, true)), plain(kBf16), plain(kBf16)},
      {"mxfp8", "E4M3 weights and activations with power-of-two scales per group of 32, E4M3 KV cache",
       weight_format(group_format(kE4, 32, ElementType::kE8m0)), group_format(kE4, 32, ElementType::kE8m0),
       row_format(kE4)},
      {"mxfp4", "E2M1 weights with power-of-two scales per group of 32; activations and KV cache BF16",
       weight_format(group_format(kE2, 32, ElementType::kE8m0)), plain(kBf16), plain(kBf16)},
      {"nvfp4", "E2M1 weights with E4M3 scales per group of 16 and one scale per tensor; activations and KV cache BF16",
       weight_format(group_format(kE2, 16, kE4)), plain(kBf16), plain(kBf16)},
  };
  return kSchemes;
}

}  // namespace

TensorFormat weight_format(TensorFormat format) {
  format.scale_time = format.scaled() ? ScaleTime::kStored : ScaleTime::kDynamic;
  return format;
}

const std::vector<Scheme>& schemes() {
  return table();
}

Result<const Scheme*> find_scheme(std::string_view name) {
  std::string names;
  for (const Scheme& scheme : schemes()) {
    if (scheme.name == name) return &scheme;
    names += (names.empty() ? "" : ", ") + std::string(scheme.name);
  }
  return fail(
      {.what = "unknown quantization scheme", .found = fmt::format("'{}'", name), .expected = "one of " + names});
}

}  // namespace octavo
