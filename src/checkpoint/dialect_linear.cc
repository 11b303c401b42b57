// The weight of one module as a checkpoint stores it, with everything that belongs to it.
#include <fmt/format.h>

#include <cstring>

#include "checkpoint/dialect.h"
#include "checkpoint/dialect_tensors.h"
#include "checkpoint/outliers.h"

namespace octavo {
namespace {

// Codes whose exponent bits say NaN or infinity. `Word` is the element's bits; a weight holds no infinity on purpose.
template <class Word>
int64_t count_at_least(std::span<const std::byte> bytes, Word magnitude_mask, Word first) {
  const size_t count = bytes.size() / sizeof(Word);
  int64_t total = 0;
  constexpr size_t kChunk = 128;  // counts in a narrow type vectorize; 128 fit in any
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t n = std::min(kChunk, count - begin);
    Word words[kChunk];
    std::memcpy(words, bytes.data() + begin * sizeof(Word), n * sizeof(Word));
    Word sum = 0;
    for (size_t i = 0; i < n; ++i) sum = static_cast<Word>(sum + ((words[i] & magnitude_mask) >= first ? 1 : 0));
    total += sum;
  }
  return total;
}

int64_t count_non_finite(const TensorView& view) {
  switch (view.element) {
    case ElementType::kE4m3:
      return count_at_least<uint8_t>(view.data, 0x7F, 0x7F);
    case ElementType::kBf16:
      return count_at_least<uint16_t>(view.data, 0x7FFF, 0x7F80);
    case ElementType::kF16:
      return count_at_least<uint16_t>(view.data, 0x7FFF, 0x7C00);
    case ElementType::kF32:
      return count_at_least<uint32_t>(view.data, 0x7FFFFFFF, 0x7F800000);
    default:
      return 0;
  }
}

bool has_bias(Role role, const ModelConfig& config) {
  switch (role) {
    case Role::kQ:
    case Role::kK:
    case Role::kV:
      return config.qkv_bias;
    case Role::kO:
      return config.o_bias;
    case Role::kGate:
    case Role::kUp:
    case Role::kDown:
      return config.mlp_bias;
    case Role::kRouter:
    case Role::kHead:
      return false;
  }
  return false;
}

Result<std::vector<float>> read_bias(const LinearModule& module, const TensorReader& tensors,
                                     std::set<std::string>& used) {
  const std::string name = module.name + ".bias";
  const TensorEntry* entry = tensors.find(name);
  const Shape expected = {module.rows};
  if (entry == nullptr || entry->shape != expected || !is_wide(*entry))
    return fail({.what = entry == nullptr ? "bias is missing" : "bias has the wrong type or shape",
                 .where = entry == nullptr ? name : tensor_where(*entry),
                 .found = entry == nullptr ? "no such tensor" : entry->stored_type + " " + shape_text(entry->shape),
                 .expected = "F32, F16 or BF16 " + shape_text(expected)});
  std::vector<float> bias(static_cast<size_t>(module.rows));
  OCTAVO_TRY(tensors.read_f32(*entry, 0, 1, bias));
  used.insert(name);
  return bias;
}

Result<void> read_quantized(const LinearModule& module, const LinearPlan& plan, const std::string& dialect,
                            const TensorReader& tensors, StoredLinear& linear, std::set<std::string>& used,
                            std::vector<std::string>& notes) {
  OCTAVO_ASSIGN(const TensorEntry* scale, find_scale(module, dialect, tensors));
  OCTAVO_CHECK(scale != nullptr, "{} has no scale", module.name);  // the plan was made from these tensors
  linear.format = plan.weight;
  const int64_t grid = plan.weight.scale_rows(module.rows) * plan.weight.scale_cols(module.cols);
  OCTAVO_ASSIGN(
      linear.scales,
      read_scales(*scale, grid, scale->stored_type == "U8" ? std::optional(ElementType::kE8m0) : std::nullopt));
  OCTAVO_CHECK(static_cast<int64_t>(linear.scales.size()) == grid, "{} scales of {}", linear.scales.size(), grid);
  used.insert(scale->name);
  if (const auto zeros = std::count(linear.scales.begin(), linear.scales.end(), 0.0f); zeros > 0)
    notes.push_back(fmt::format("{}: {} of {} scales are zero, so are their weights", scale->name, zeros, grid));
  OCTAVO_ASSIGN(const TensorEntry* input_scale, find_one_of(module, input_scale_names(dialect), tensors));
  if (input_scale == nullptr) return {};
  used.insert(input_scale->name);
  if (plan.activation.scale_time != ScaleTime::kStored) {
    notes.push_back(fmt::format("{} is not used: activations are dynamic", input_scale->name));
    return {};
  }
  OCTAVO_ASSIGN(const std::vector<float> value, read_scales(*input_scale, 1));
  if (value[0] == 0.0f)
    return fail(
        {.what = "input scale is zero", .where = tensor_where(*input_scale), .found = "0", .expected = "a scale > 0"});
  linear.input_scale = value[0];
  return {};
}

}  // namespace

namespace {

// Blocks of the container, as they are.
StoredLinear read_blocks(const LinearModule& module, const TensorFormat& format, const TensorEntry& weight,
                         const TensorReader& tensors) {
  StoredLinear linear{.entry = &weight, .format = format, .rows = module.rows, .cols = module.cols};
  auto codes = std::make_shared<AlignedBytes>(static_cast<size_t>(format.element_bytes(module.rows, module.cols)));
  linear.scales.resize(static_cast<size_t>(format.scale_rows(module.rows) * format.scale_cols(module.cols)));
  tensors.read_codes(weight, {codes->data(), codes->size()}, linear.scales);
  linear.decoded = std::move(codes);
  return linear;
}

// All but outlier channels.
Result<StoredLinear> read_weight(const LinearModule& module, const StoredQuantization& quantization,
                                 const ModelConfig& config, const TensorReader& tensors, std::set<std::string>& used,
                                 std::vector<std::string>& notes) {
  if (const auto packed = quantization.packed.find(module.name); packed != quantization.packed.end()) {
    OCTAVO_ASSIGN(StoredLinear linear, read_packed(module, packed->second, tensors, used, notes));
    if (has_bias(module.role, config)) {
      OCTAVO_ASSIGN(linear.bias, read_bias(module, tensors, used));
    }
    return linear;
  }
  const LinearPlan& plan = quantization.plan.linear(module.name);
  const TensorEntry* weight = find_weight(module, config, tensors);
  OCTAVO_CHECK(weight != nullptr, "{} has no weight", module.name);  // the plan was made from these tensors
  StoredLinear linear{.entry = weight, .format = {}, .rows = module.rows, .cols = module.cols};
  if (const auto blocks = tensors.code_format(*weight))
    linear = read_blocks(module, *blocks, *weight, tensors);
  else if (plan.weight.scaled())
    OCTAVO_TRY(read_quantized(module, plan, quantization.dialect, tensors, linear, used, notes));
  else
    linear.format = plain_format(weight->plain ? weight->plain->element : ElementType::kF32);
  if (has_bias(module.role, config)) {
    OCTAVO_ASSIGN(linear.bias, read_bias(module, tensors, used));
  }
  used.insert(weight->name);
  if (const int64_t bad = weight->plain ? count_non_finite(*weight->plain) : 0; bad > 0)
    notes.push_back(fmt::format("{}: {} stored values are NaN{}", weight->name, bad,
                                weight->plain->element == ElementType::kE4m3 ? "" : " or infinite"));
  return linear;
}

}  // namespace

Result<StoredLinear> read_stored_linear(const LinearModule& module, const StoredQuantization& quantization,
                                        const ModelConfig& config, const TensorReader& tensors,
                                        std::set<std::string>& used, std::vector<std::string>& notes) {
  OCTAVO_ASSIGN(StoredLinear linear, read_weight(module, quantization, config, tensors, used, notes));
  if (quantization.plan.linear(module.name).outliers > 0) {
    OCTAVO_ASSIGN(linear.outliers, read_outliers(module, tensors, used));
  }
  return linear;
}

}  // namespace octavo
