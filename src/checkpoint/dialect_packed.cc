#include "checkpoint/dialect_packed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/dialect_tensors.h"

namespace octavo {
namespace {

// Tensors beside a packed weight that say nothing new.
constexpr std::string_view kSilent[] = {".weight_shape", ".input_scale", ".input_global_scale"};

std::string_view type_text(ElementType element) {
  return element_info(element).safetensors;
}

int bits_of(const TensorFormat& format) {
  return element_bits(format.element);
}

Result<const TensorEntry*> find_tensor(const LinearModule& module, std::string_view suffix, const Shape& shape,
                                       std::initializer_list<ElementType> types, const TensorReader& tensors) {
  const std::string name = module.name + std::string(suffix);
  std::string expected;
  for (const ElementType type : types) expected += (expected.empty() ? "" : " or ") + std::string(type_text(type));
  expected += " " + shape_text(shape);
  const TensorEntry* entry = tensors.find(name);
  if (entry == nullptr)
    return fail({.what = "a tensor of a packed weight is missing",
                 .where = name,
                 .found = "no such tensor",
                 .expected = std::move(expected)});
  const bool type_fits = entry->plain && std::find(types.begin(), types.end(), entry->plain->element) != types.end();
  // One value may be [], [1] or [1, 1].
  const bool one = entry->plain && entry->plain->size() == 1 && shape == Shape{1};
  if (!type_fits || (entry->shape != shape && !one))
    return fail({.what = "a tensor of a packed weight has the wrong type or shape",
                 .where = tensor_where(*entry),
                 .found = entry->stored_type + " " + shape_text(entry->shape),
                 .expected = std::move(expected)});
  return entry;
}

Shape grid_shape(const PackedLayout& layout, const TensorFormat& format, int64_t rows, int64_t cols) {
  const int64_t groups = format.scale_cols(cols), out = format.scale_rows(rows);
  return layout.transposed ? Shape{groups, out} : Shape{out, groups};
}

// The format with the group width that the scale grid implies.
Result<TensorFormat> groups_from_shape(const LinearModule& module, TensorFormat format, const PackedLayout& layout,
                                       const TensorReader& tensors) {
  const TensorEntry* scale = tensors.find(module.name + std::string(layout.scale));
  const int64_t groups = scale != nullptr && scale->shape.size() == 2 ? scale->shape[layout.transposed ? 0 : 1] : 0;
  if (groups < 1 || module.cols % groups != 0 || module.cols / groups > 65536)
    return fail({.what = "scale grid has the wrong shape",
                 .where = module.name + std::string(layout.scale),
                 .found = scale == nullptr ? "no such tensor" : shape_text(scale->shape),
                 .expected = fmt::format("one column for each group of the {} inputs", module.cols)});
  format.block_cols = static_cast<int>(module.cols / groups);
  return format;
}

int group_at(const TensorEntry& groups, int64_t col) {
  return static_cast<int>(groups.plain->at(col));
}

// Whether column k lies in group k / width. Error: a group that the grid does not have.
Result<bool> columns_in_order(const TensorEntry& groups, const TensorFormat& format, int64_t cols) {
  bool in_order = true;
  const int64_t count = format.scale_cols(cols), width = format.grouped() ? format.block_cols : cols;
  for (int64_t k = 0; k < cols; ++k) {
    const int group = group_at(groups, k);
    if (group < 0 || group >= count)
      return fail({.what = "a column lies in a group that does not exist",
                   .where = tensor_where(groups),
                   .found = fmt::format("{} at column {}", group, k),
                   .expected = fmt::format("0 to {}", count - 1)});
    in_order = in_order && group == k / width;
  }
  return in_order;
}

// Zero points as differences to the middle: those of symmetric weights are 0.
std::vector<float> read_zeros(const PackedWeight& packed, int64_t rows, int64_t groups) {
  const int bits = bits_of(packed.format), mask = (1 << bits) - 1, middle = 1 << (bits - 1);
  const std::byte* words = packed.zeros->plain->data.data();
  std::vector<float> zeros(static_cast<size_t>(rows * groups));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t g = 0; g < groups; ++g) {
      const int stored = packed.layout->zero(words, r, g, rows, groups, bits);
      zeros[static_cast<size_t>(r * groups + g)] =
          static_cast<float>(((stored + (packed.zeros_less_one ? 1 : 0)) & mask) - middle);
    }
  return zeros;
}

// The grid as Octavo keeps it: [rows, groups].
std::vector<float> row_major(std::vector<float> grid, const PackedLayout& layout, int64_t rows, int64_t groups) {
  if (!layout.transposed) return grid;
  std::vector<float> out(grid.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t g = 0; g < groups; ++g)
      out[static_cast<size_t>(r * groups + g)] = grid[static_cast<size_t>(g * rows + r)];
  return out;
}

constexpr std::initializer_list<ElementType> kFloats = {ElementType::kBf16, ElementType::kF16, ElementType::kF32};

std::initializer_list<ElementType> scale_types(const TensorFormat& format) {
  static constexpr std::initializer_list<ElementType> kExponents = {ElementType::kUint8, ElementType::kE8m0};
  static constexpr std::initializer_list<ElementType> kE4m3 = {ElementType::kE4m3};
  return format.scale == ElementType::kE8m0 ? kExponents : format.scale == ElementType::kE4m3 ? kE4m3 : kFloats;
}

// The packed codes and their scales; the stored type of plain scales becomes the format's.
Result<void> find_codes(const LinearModule& module, const TensorEntry& weight, const TensorReader& tensors,
                        PackedWeight& out) {
  const PackedLayout& layout = *out.layout;
  const int bits = bits_of(out.format);
  Shape codes = layout.weight_shape(module.rows, module.cols, bits);
  Shape grid = grid_shape(layout, out.format, module.rows, module.cols);
  if (weight.shape.size() == 4 && layout.logical_shape(weight.shape, bits) == Shape{module.rows, module.cols}) {
    codes = weight.shape;  // the experts of a layer, blocks apart: both grids have these axes
    grid = {codes[0], codes[1], codes[2]};
  }
  OCTAVO_ASSIGN(out.weight, find_tensor(module, layout.weight, codes, {layout.word}, tensors));
  OCTAVO_ASSIGN(out.scale, find_tensor(module, layout.scale, grid, scale_types(out.format), tensors));
  if (out.format.scale != ElementType::kE8m0) out.format.scale = out.scale->plain->element;
  return {};
}

Result<void> find_zeros(const LinearModule& module, const TensorReader& tensors, PackedWeight& out) {
  if (!out.format.zero_points) return {};
  const int64_t rows = out.format.scale_rows(module.rows), groups = out.format.scale_cols(module.cols);
  const PackedLayout& layout = *out.layout;
  OCTAVO_ASSIGN(out.zeros, find_tensor(module, layout.zeros, layout.zeros_shape(rows, groups, bits_of(out.format)),
                                       {layout.word}, tensors));
  const std::vector<float> zeros = read_zeros(out, rows, groups);
  if (std::all_of(zeros.begin(), zeros.end(), [](float zero) { return zero == 0.0f; })) out.format.zero_points = false;
  return {};
}

// Columns out of order, and factors of the input. Returns why the weight has no grid along K; empty where it has.
Result<std::string> find_column_changes(const LinearModule& module, const TensorReader& tensors, PackedWeight& out) {
  const PackedLayout& layout = *out.layout;
  const auto present = [&](std::string_view suffix) {
    return !suffix.empty() && tensors.find(module.name + std::string(suffix)) != nullptr;
  };
  if (present(layout.groups)) {
    OCTAVO_ASSIGN(out.groups, find_tensor(module, layout.groups, {module.cols}, {ElementType::kInt32}, tensors));
    OCTAVO_ASSIGN(const bool in_order, columns_in_order(*out.groups, out.format, module.cols));
    if (!in_order) return "its columns lie in any order of groups";
  }
  if (!present(layout.input_factor)) return "";
  OCTAVO_ASSIGN(out.input_factor, find_tensor(module, layout.input_factor, {module.cols}, kFloats, tensors));
  return "its input has a factor for each column";
}

// Values of a weight whose columns lie in any order of groups, or whose input has a factor.
std::shared_ptr<const AlignedBytes> dequantize_packed(const StoredLinear& linear, const PackedWeight& packed) {
  auto bytes = std::make_shared<AlignedBytes>(static_cast<size_t>(linear.rows * linear.cols) * sizeof(float));
  auto* out = reinterpret_cast<float*>(bytes->data());
  const MatrixView view = linear.view();
  const int64_t groups = packed.format.scale_cols(linear.cols);
  for (int64_t r = 0; r < linear.rows; ++r)
    for (int64_t k = 0; k < linear.cols; ++k) {
      const int64_t at = packed.groups != nullptr ? r * groups + group_at(*packed.groups, k) : view.grid_index(r, k);
      const float code = load_element(
          packed.format.element, view.codes + r * packed.format.element_bytes(1, linear.cols), static_cast<size_t>(k));
      const float zero = packed.format.zero_points ? view.zeros[at] : 0.0f;
      float value = (code - zero) * view.scales[at];
      if (packed.input_factor != nullptr) value *= packed.input_factor->plain->at(k);
      out[r * linear.cols + k] = value;
    }
  return bytes;
}

}  // namespace

const TensorEntry* find_packed_weight(const LinearModule& module, const ModuleRule& rule, const TensorReader& tensors) {
  if (rule.layout == nullptr || !rule.quantized) return nullptr;
  const TensorEntry* entry = tensors.find(module.name + std::string(rule.layout->weight));
  return entry != nullptr && !is_wide(*entry) ? entry : nullptr;
}

Result<PackedWeight> check_packed(const LinearModule& module, const ModuleRule& rule, const TensorEntry& weight,
                                  const TensorReader& tensors) {
  const PackedLayout& layout = *rule.layout;
  PackedWeight out{.layout = &layout, .zeros_less_one = rule.zeros_less_one, .format = rule.weight};
  if (rule.shape_groups) {
    OCTAVO_ASSIGN(out.format, groups_from_shape(module, out.format, layout, tensors));
  }
  OCTAVO_TRY(find_codes(module, weight, tensors, out));
  OCTAVO_TRY(find_zeros(module, tensors, out));
  if (!layout.outer.empty()) {
    OCTAVO_ASSIGN(out.outer, find_tensor(module, layout.outer, {1}, {ElementType::kF32}, tensors));
  }
  out.plan = {out.format, rule.activation, rule.reason};
  OCTAVO_ASSIGN(const std::string why_wide, find_column_changes(module, tensors, out));
  const TensorFormat bf16 = plain_format(ElementType::kBf16);
  if (!why_wide.empty()) out.plan = {bf16, bf16, "checkpoint, dequantized: " + why_wide};
  return out;
}

Result<StoredLinear> read_packed(const LinearModule& module, const PackedWeight& packed, const TensorReader& tensors,
                                 std::set<std::string>& used, std::vector<std::string>& notes) {
  const PackedLayout& layout = *packed.layout;
  const TensorFormat& format = packed.format;
  StoredLinear linear{.entry = packed.weight, .format = format, .rows = module.rows, .cols = module.cols};
  const int64_t rows = format.scale_rows(module.rows), groups = format.scale_cols(module.cols);
  const std::optional<ElementType> as =
      format.scale == ElementType::kE8m0 ? std::optional(ElementType::kE8m0) : std::nullopt;
  OCTAVO_ASSIGN(std::vector<float> scales, read_scales(*packed.scale, rows * groups, as));
  linear.scales = row_major(std::move(scales), layout, rows, groups);
  if (const auto zeros = std::count(linear.scales.begin(), linear.scales.end(), 0.0f); zeros > 0)
    notes.push_back(
        fmt::format("{}: {} of {} scales are zero, so are their weights", packed.scale->name, zeros, rows * groups));
  if (format.zero_points) linear.zeros = read_zeros(packed, rows, groups);
  if (packed.outer != nullptr) {
    OCTAVO_ASSIGN(const std::vector<float> outer, read_scales(*packed.outer, 1));
    if (outer[0] == 0.0f)
      return fail(
          {.what = "scale is zero", .where = tensor_where(*packed.outer), .found = "0", .expected = "a scale > 0"});
    (layout.outer_divides ? linear.outer.divisor : linear.outer.factor) = outer[0];
  }
  if (layout.decode != nullptr) {
    auto codes = std::make_shared<AlignedBytes>(static_cast<size_t>(format.element_bytes(module.rows, module.cols)));
    layout.decode(packed.weight->plain->data.data(), module.rows, module.cols, bits_of(format), codes->data());
    linear.decoded = std::move(codes);
  }
  if (!packed.plan.weight.scaled()) {
    linear.decoded = dequantize_packed(linear, packed);
    linear.format = plain_format(ElementType::kF32);
    linear.scales.clear();
    linear.zeros.clear();
  }
  for (const TensorEntry* entry :
       {packed.weight, packed.scale, packed.zeros, packed.groups, packed.outer, packed.input_factor})
    if (entry != nullptr) used.insert(entry->name);
  for (const std::string_view suffix : kSilent)
    if (const TensorEntry* entry = tensors.find(module.name + std::string(suffix))) used.insert(entry->name);
  return linear;
}

}  // namespace octavo
