// Tensors of a GGUF file under hub names: blocks decoded row by row, llama's q and k rows put back into rotate-half
// order.
#include <algorithm>

#include "base/check.h"
#include "checkpoint/ggml_bytes.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_names.h"
#include "checkpoint/model_config_experts.h"
#include "checkpoint/safetensors.h"

namespace octavo {
namespace {

// Where a tensor lies in the file. head_rows: rows of a head whose rotary pairs lie side by side in the file (0: none).
struct Source {
  std::span<const std::byte> data;
  const GgmlType* type;
  int64_t head_rows;
};

// What a layer with experts has; the experts of a layer are one tensor, [experts, out, in].
constexpr std::pair<std::string_view, std::string_view ExpertNames::*> kExpertParts[] = {
    {"ffn_gate_inp.weight", &ExpertNames::router},
    {"ffn_gate_exps.weight", &ExpertNames::gate},
    {"ffn_up_exps.weight", &ExpertNames::up},
    {"ffn_down_exps.weight", &ExpertNames::down}};

std::optional<ElementType> plain_element(const GgmlType& type) {
  if (type.name == "F32") return ElementType::kF32;
  if (type.name == "F16") return ElementType::kF16;
  if (type.name == "BF16") return ElementType::kBf16;
  return std::nullopt;
}

class GgufReader final : public TensorReader {
 public:
  explicit GgufReader(Gguf gguf) : gguf_(std::move(gguf)) {}
  Result<void> index(const ModelConfig& config);

  const std::vector<TensorEntry>& entries() const override { return entries_; }
  const TensorEntry* find(std::string_view name) const override;
  Result<void> read_f32(const TensorEntry& entry, int64_t begin, int64_t end, std::span<float> out) const override;
  std::optional<TensorFormat> code_format(const TensorEntry& entry) const override;
  void read_codes(const TensorEntry& entry, std::span<std::byte> codes, std::span<float> scales) const override;
  void forget(const TensorEntry& entry, int64_t begin, int64_t end) const override;

 private:
  const Source& source(const TensorEntry& entry) const {
    return sources_[static_cast<size_t>(&entry - entries_.data())];
  }

  void add(std::string name, Shape shape, const Source& from);
  Result<bool> add_expert_tensor(const Gguf::Tensor& tensor, const ModelConfig& config);

  Gguf gguf_;
  std::vector<std::pair<TensorEntry, Source>> found_;  // while they are looked for
  std::vector<TensorEntry> entries_;                   // sorted by name
  std::vector<Source> sources_;                        // of the same index
};

// Hub row r of a head lies at this row of the file: pairs (i, i + half) are neighbours (2i, 2i + 1) there.
int64_t file_row(int64_t row, int64_t head_rows) {
  if (head_rows == 0) return row;
  const int64_t head = row / head_rows, within = row % head_rows, half = head_rows / 2;
  return head * head_rows + (within < half ? 2 * within : 2 * (within - half) + 1);
}

bool is_rotated(std::string_view hub_name) {
  return hub_name.find(".self_attn.q_proj.") != std::string_view::npos ||
         hub_name.find(".self_attn.k_proj.") != std::string_view::npos;
}

Error bad_shape(const Gguf& gguf, const Gguf::Tensor& tensor, std::string expected) {
  return {.what = "tensor has the wrong shape",
          .where = fmt::format("{}, tensor {}", gguf.path().string(), tensor.name),
          .found = shape_text(tensor.shape),
          .expected = std::move(expected)};
}

void GgufReader::add(std::string name, Shape shape, const Source& from) {
  TensorEntry entry;
  entry.name = std::move(name);
  entry.stored_type = from.type->name;
  entry.stored_bytes = static_cast<int64_t>(from.data.size());
  entry.file = gguf_.path().filename();
  const auto element = plain_element(*from.type);
  if (element && from.head_rows == 0) entry.plain = TensorView{*element, shape, from.data};
  entry.shape = std::move(shape);
  found_.emplace_back(std::move(entry), from);
}

// The router, or gate, up or down of all experts of a layer, under the model's own names. False: no such tensor.
Result<bool> GgufReader::add_expert_tensor(const Gguf::Tensor& tensor, const ModelConfig& config) {
  for (const auto& [suffix, part] : kExpertParts) {
    int64_t layer = 0;
    if (!config.experts || !gguf_layer_tensor(tensor.name, suffix, layer) || layer >= config.num_layers) continue;
    const GgmlType& type = *find_ggml_type(tensor.type);
    const ExpertNames& names = expert_names(config.model_type);
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    if (part == &ExpertNames::router) {
      add(fmt::format("{}{}.weight", prefix, names.router), tensor.shape, {tensor.data, &type, 0});
      return true;
    }
    const int64_t count = config.experts->count;
    if (tensor.shape.size() != 3 || tensor.shape[0] != count || tensor.data.empty())
      return fail(bad_shape(gguf_, tensor, fmt::format("[{}, outputs, inputs], none of them 0", count)));
    const size_t bytes = tensor.data.size() / static_cast<size_t>(count);
    for (int64_t e = 0; e < count; ++e)
      add(fmt::format("{}{}.{}.{}.weight", prefix, names.experts, e, names.*part), {tensor.shape[1], tensor.shape[2]},
          {tensor.data.subspan(static_cast<size_t>(e) * bytes, bytes), &type, 0});
    return true;
  }
  return false;
}

Result<void> GgufReader::index(const ModelConfig& config) {
  const bool interleaved = gguf_.text("general.architecture") == "llama";
  for (const Gguf::Tensor& tensor : gguf_.tensors()) {
    OCTAVO_ASSIGN(const bool of_experts, add_expert_tensor(tensor, config));
    if (of_experts) continue;
    Source from{.data = tensor.data, .type = find_ggml_type(tensor.type), .head_rows = 0};
    std::string name = gguf_hub_name(tensor.name);
    const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape.front();
    if (interleaved && is_rotated(name)) {
      from.head_rows = config.head_dim;
      if (rows % config.head_dim != 0 || (tensor.shape.size() == 1 && from.type->block_elements != 1))
        return fail(bad_shape(gguf_, tensor, fmt::format("whole heads of {} rows", config.head_dim)));
    }
    add(std::move(name), tensor.shape, from);
  }
  std::sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) { return a.first.name < b.first.name; });
  for (auto& [entry, from] : found_) {
    if (!entries_.empty() && entries_.back().name == entry.name)
      return fail({.what = "two tensors of the GGUF file are the same tensor of the model",
                   .where = fmt::format("{}, tensor {}", gguf_.path().string(), entry.name)});
    entries_.push_back(std::move(entry));
    sources_.push_back(from);
  }
  found_.clear();
  return {};
}

const TensorEntry* GgufReader::find(std::string_view name) const {
  const auto at =
      std::lower_bound(entries_.begin(), entries_.end(), name,
                       [](const TensorEntry& entry, std::string_view wanted) { return entry.name < wanted; });
  return at != entries_.end() && at->name == name ? &*at : nullptr;
}

Result<void> GgufReader::read_f32(const TensorEntry& entry, int64_t begin, int64_t end, std::span<float> out) const {
  if (entry.plain) {
    read_plain_rows(*entry.plain, begin, end, out);
    return {};
  }
  const Source& from = source(entry);
  if (from.data.empty()) {
    OCTAVO_CHECK(out.empty(), "{} values of an empty tensor", out.size());
    return {};
  }
  // A vector is one row to the caller, and as many rows as elements to the head order.
  const bool vector = entry.shape.size() == 1;
  const int64_t cols = vector ? (from.head_rows > 0 ? 1 : entry.shape[0]) : entry.shape.back();
  const int64_t rows =
      static_cast<int64_t>(from.data.size()) / from.type->block_bytes * from.type->block_elements / cols;
  if (vector && from.head_rows > 0) {
    OCTAVO_CHECK(begin == 0 && end == 1, "rows [{}, {}) of a vector", begin, end);
    end = rows;
  }
  OCTAVO_CHECK(begin >= 0 && begin <= end && end <= rows, "rows [{}, {}) of {}", begin, end, rows);
  OCTAVO_CHECK(static_cast<int64_t>(out.size()) == (end - begin) * cols, "{} values for {} x {}", out.size(),
               end - begin, cols);
  const int64_t blocks = cols / from.type->block_elements;
  float* to = out.data();
  for (int64_t row = begin; row < end; ++row) {
    const std::byte* block = from.data.data() + file_row(row, from.head_rows) * blocks * from.type->block_bytes;
    for (int64_t b = 0; b < blocks; ++b, block += from.type->block_bytes, to += from.type->block_elements)
      from.type->decode(block, to);
  }
  return {};
}

std::optional<TensorFormat> GgufReader::code_format(const TensorEntry& entry) const {
  const GgmlType& type = *source(entry).type;
  if (type.codes == nullptr || entry.shape.size() != 2) return std::nullopt;
  return group_format(type.code, type.block_elements, ElementType::kF16);
}

void GgufReader::read_codes(const TensorEntry& entry, std::span<std::byte> codes, std::span<float> scales) const {
  const Source& from = source(entry);
  const GgmlType& type = *from.type;
  const int64_t rows = entry.shape[0], blocks = entry.shape[1] / type.block_elements;
  const int64_t code_bytes = type.block_elements * element_bits(type.code) / 8;
  OCTAVO_CHECK(std::ssize(scales) == rows * blocks && std::ssize(codes) == rows * blocks * code_bytes,
               "{} scales and {} bytes of codes for {} x {} blocks", scales.size(), codes.size(), rows, blocks);
  std::byte* to = codes.data();
  float* scale = scales.data();
  for (int64_t row = 0; row < rows; ++row) {
    const std::byte* block = from.data.data() + file_row(row, from.head_rows) * blocks * type.block_bytes;
    for (int64_t b = 0; b < blocks; ++b, block += type.block_bytes, to += code_bytes, ++scale) {
      type.codes(block, to);
      *scale = ggml::half(block);
    }
  }
}

void GgufReader::forget(const TensorEntry& entry, int64_t begin, int64_t end) const {
  const Source& from = source(entry);
  const auto data = from.data;
  if (data.empty() || entry.shape.size() < 2 || begin >= end) return;
  const int64_t rows =
      static_cast<int64_t>(data.size()) / from.type->block_bytes * from.type->block_elements / entry.shape.back();
  if (from.head_rows > 0) {  // a head's rows are spread over all of it
    begin = begin / from.head_rows * from.head_rows;
    end = std::min(rows, (end + from.head_rows - 1) / from.head_rows * from.head_rows);
  }
  const size_t row_bytes = data.size() / static_cast<size_t>(rows);
  gguf_.forget(data.subspan(static_cast<size_t>(begin) * row_bytes, static_cast<size_t>(end - begin) * row_bytes));
}

}  // namespace

Result<std::unique_ptr<TensorReader>> open_gguf_tensors(Gguf gguf, const ModelConfig& config) {
  auto reader = std::make_unique<GgufReader>(std::move(gguf));
  OCTAVO_TRY(reader->index(config));
  return reader;
}

}  // namespace octavo
