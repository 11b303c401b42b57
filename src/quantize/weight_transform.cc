#include "quantize/weight_transform.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kernels/hadamard.h"

namespace octavo {
namespace {

// The spaces that a tensor's columns and rows live in.
enum class Space : uint8_t {
  kFree,      // nothing is done to it
  kResidual,  // the residual stream
  kHeads,     // v's outputs, o's inputs
  kGated,     // down's inputs
};

// One kind of tensor of a layer (or of the whole model), by the end of its name.
struct TensorKind {
  std::string_view name;
  Space columns = Space::kFree, rows = Space::kFree;
  std::optional<LinearInput> input = {};  // its columns are multiplied with the factors of this place
  std::optional<LinearInput> makes = {};  // its rows (a norm: its weight) are divided by the factors of this place
  std::string_view norm = {};             // the norm in front, whose weight a rotation folds in
  bool is_norm = false;
};

constexpr auto kQkv = LinearInput::kQkv, kO = LinearInput::kO, kGateUp = LinearInput::kGateUp,
               kDown = LinearInput::kDown;

constexpr TensorKind kKinds[] = {
    {"self_attn.q_proj", Space::kResidual, Space::kFree, kQkv, {}, "input_layernorm"},
    {"self_attn.k_proj", Space::kResidual, Space::kFree, kQkv, {}, "input_layernorm"},
    {"self_attn.v_proj", Space::kResidual, Space::kHeads, kQkv, kO, "input_layernorm"},
    {"self_attn.o_proj", Space::kHeads, Space::kResidual, kO, {}, {}},
    {"mlp.gate_proj", Space::kResidual, Space::kFree, kGateUp, {}, "post_attention_layernorm"},
    {"mlp.up_proj", Space::kResidual, Space::kFree, kGateUp, kDown, "post_attention_layernorm"},
    {"mlp.down_proj", Space::kGated, Space::kResidual, kDown, {}, {}},
    {"mlp.gate", Space::kResidual, Space::kFree, {}, {}, "post_attention_layernorm"},
    {"mlp.experts.*.gate_proj", Space::kResidual, Space::kFree, {}, {}, "post_attention_layernorm"},
    {"mlp.experts.*.up_proj", Space::kResidual, Space::kFree, {}, {}, "post_attention_layernorm"},
    {"mlp.experts.*.down_proj", Space::kGated, Space::kResidual, {}, {}, {}},
    {"block_sparse_moe.gate", Space::kResidual, Space::kFree, {}, {}, "post_attention_layernorm"},
    {"block_sparse_moe.experts.*.w1", Space::kResidual, Space::kFree, {}, {}, "post_attention_layernorm"},
    {"block_sparse_moe.experts.*.w3", Space::kResidual, Space::kFree, {}, {}, "post_attention_layernorm"},
    {"block_sparse_moe.experts.*.w2", Space::kGated, Space::kResidual, {}, {}, {}},
    {"input_layernorm", Space::kFree, Space::kFree, {}, kQkv, {}, true},
    {"post_attention_layernorm", Space::kFree, Space::kFree, {}, kGateUp, {}, true},
    {"model.norm", Space::kFree, Space::kFree, {}, {}, {}, true},
    {"model.embed_tokens", Space::kResidual, Space::kFree, {}, {}, {}},
    {"lm_head", Space::kResidual, Space::kFree, {}, {}, "model.norm"},
};

constexpr std::string_view kLayers = "model.layers.", kEmbedding = "model.embed_tokens.weight",
                           kHead = "lm_head.weight";

int64_t cols_of(const TensorEntry& entry) {
  return entry.shape.empty() ? 1 : entry.shape.back();
}

// A number near `value` that the type holds exactly; 0 and infinities where it is out of the type's range.
float as_stored(float value, ElementType element) {
  uint32_t bits = 0;
  store_element(element, &bits, 0, value);
  return load_element(element, &bits, 0);
}

}  // namespace

struct WeightTransform::Tensor {
  const TensorKind* kind;
  int layer;  // -1: of no layer
  bool bias;
  std::string name, norm;
};

namespace {

// "*" in a kind's name stands for a number.
bool is_kind(std::string_view kind, std::string_view module) {
  const size_t star = kind.find('*');
  if (star == std::string_view::npos) return kind == module;
  const std::string_view head = kind.substr(0, star), tail = kind.substr(star + 1);
  if (module.size() <= head.size() + tail.size() || !module.starts_with(head) || !module.ends_with(tail)) return false;
  const std::string_view number = module.substr(star, module.size() - head.size() - tail.size());
  return number.find_first_not_of("0123456789") == std::string_view::npos;
}

std::optional<WeightTransform::Tensor> tensor_of(std::string_view name) {
  WeightTransform::Tensor tensor{.kind = nullptr, .layer = -1, .bias = name.ends_with(".bias"), .name = "", .norm = ""};
  if (!tensor.bias && !name.ends_with(".weight")) return std::nullopt;
  tensor.name = name;
  std::string_view module = name.substr(0, name.rfind('.'));
  std::string prefix;
  if (module.starts_with(kLayers)) {
    const char *begin = module.data() + kLayers.size(), *end = module.data() + module.size();
    const auto [rest, error] = std::from_chars(begin, end, tensor.layer);
    if (error != std::errc() || rest == end || *rest != '.') return std::nullopt;
    prefix = std::string(module.data(), rest + 1);
    module = {rest + 1, static_cast<size_t>(end - rest - 1)};
  }
  for (const TensorKind& kind : kKinds)
    if (is_kind(kind.name, module)) tensor.kind = &kind;
  if (tensor.kind == nullptr) return std::nullopt;
  if (!tensor.kind->norm.empty()) tensor.norm = fmt::format("{}{}.weight", prefix, tensor.kind->norm);
  return tensor;
}

}  // namespace

std::string TransformOptions::describe() const {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (rotate != Rotate::kNone)
    add(fmt::format("rotate {} seed {}", rotate == Rotate::kOffline ? "offline" : "online", seed));
  if (smooth > 0) add(fmt::format("smooth {}", smooth));
  if (awq) add("awq");
  return text;
}

WeightTransform::WeightTransform(const Checkpoint& source, const TransformOptions& options)
    : source_(source.tensors()), options_(options), config_(source.config()) {
  if (options.rotate == TransformOptions::Rotate::kNone) return;
  rotation_.emplace(config_.hidden_size, options.seed);
  config_.tied_embeddings = false;
  if (options.rotate == TransformOptions::Rotate::kOnline)
    config_.down_hadamard = largest_power_of_two(config_.shared_intermediate());
}

Result<std::unique_ptr<WeightTransform>> WeightTransform::create(const Checkpoint& source,
                                                                 const TransformOptions& options) {
  std::unique_ptr<WeightTransform> transform(new WeightTransform(source, options));
  const bool tied = source.config().tied_embeddings && transform->rotation_.has_value();
  for (const TensorEntry& entry : transform->source_.entries()) {
    if (tied && entry.name == kHead) continue;
    TensorEntry& out = transform->entries_.emplace_back(entry);
    const auto tensor = tensor_of(entry.name);
    if (!tensor) continue;
    const TensorKind& kind = *tensor->kind;
    if (transform->rotation_ || (options.fitted() && (kind.input || kind.makes))) out.plain.reset();
    if (!kind.is_norm) continue;
    Norm& norm = transform->norms_[entry.name];
    OCTAVO_ASSIGN(norm.weight, source.wide(entry.name, {cols_of(entry)}));
    norm.element = entry.plain ? entry.plain->element : ElementType::kF32;
  }
  if (tied) {
    const TensorEntry* embedding = transform->find(kEmbedding);
    OCTAVO_CHECK(embedding != nullptr, "a checkpoint without {}", kEmbedding);
    TensorEntry head = *embedding;
    head.name = kHead;
    const auto at =
        std::lower_bound(transform->entries_.begin(), transform->entries_.end(), head.name,
                         [](const TensorEntry& entry, const std::string& name) { return entry.name < name; });
    transform->entries_.insert(at, std::move(head));
  }
  return transform;
}

bool WeightTransform::can_scale(LinearInput input) const {
  return input != LinearInput::kHead && !(input == kDown && config_.down_hadamard > 0);
}

void WeightTransform::share_largest(LinearInput input, std::span<float> per_channel) const {
  if (input != kO) return;
  const auto head_dim = static_cast<size_t>(config_.head_dim);
  const auto shared = static_cast<size_t>(config_.num_heads / config_.num_kv_heads);
  for (size_t first = 0; first < per_channel.size(); first += shared * head_dim)
    for (size_t d = first; d < first + head_dim; ++d) {
      float largest = 0;
      for (size_t h = 0; h < shared; ++h) largest = std::max(largest, per_channel[d + h * head_dim]);
      for (size_t h = 0; h < shared; ++h) per_channel[d + h * head_dim] = largest;
    }
}

void WeightTransform::set_factors(int layer, LinearInput input, std::vector<float> factors) {
  OCTAVO_CHECK(can_scale(input), "no factors at {}", static_cast<int>(input));
  share_largest(input, factors);
  if (input == kQkv || input == kGateUp) {
    const Norm& norm = norms_.at(
        fmt::format("{}{}.{}.weight", kLayers, layer, input == kQkv ? "input_layernorm" : "post_attention_layernorm"));
    for (size_t i = 0; i < factors.size(); ++i) {
      const float own = rotation_ ? 1.0f : norm.weight[i], divided = as_stored(own / factors[i], norm.element);
      factors[i] = divided == 0 || !std::isfinite(divided) ? 1.0f : own / divided;
    }
  }
  factors_[{layer, input}] = std::move(factors);
}

const std::vector<float>* WeightTransform::factors(int layer, LinearInput input) const {
  const auto found = factors_.find({layer, input});
  return found == factors_.end() ? nullptr : &found->second;
}

const TensorEntry* WeightTransform::find(std::string_view name) const {
  const auto at =
      std::lower_bound(entries_.begin(), entries_.end(), name,
                       [](const TensorEntry& entry, std::string_view wanted) { return entry.name < wanted; });
  return at == entries_.end() || at->name != name ? nullptr : &*at;
}

const TensorEntry& WeightTransform::source_entry(const TensorEntry& entry) const {
  const bool shared = entry.name == kHead && rotation_ && source_.find(kHead) == nullptr;
  const TensorEntry* found = source_.find(shared ? kEmbedding : std::string_view(entry.name));
  OCTAVO_CHECK(found != nullptr, "no tensor {}", entry.name);
  return *found;
}

void WeightTransform::forget(const TensorEntry& entry, int64_t begin, int64_t end) const {
  source_.forget(source_entry(entry), begin, end);
}

// The input side of rows of `cols` values.
void WeightTransform::rotate_columns(const Tensor& tensor, std::span<float> rows, int64_t cols) const {
  const Space space = tensor.kind->columns;
  const float* norm = tensor.norm.empty() ? nullptr : norms_.find(tensor.norm)->second.weight.data();
  for (float* row = rows.data(); row < rows.data() + rows.size(); row += cols) {
    if (norm != nullptr)
      for (int64_t c = 0; c < cols; ++c) row[c] *= norm[c];
    if (space == Space::kResidual) rotation_->apply(row, 1);
    if (space == Space::kHeads) hadamard_blocks(row, cols, largest_power_of_two(config_.head_dim));
    if (space == Space::kGated && config_.down_hadamard > 0) hadamard_blocks(row, cols, config_.down_hadamard);
  }
}

// A weight whose rows all depend on each other, into whole_.
Result<void> WeightTransform::rotate_whole(const Tensor& tensor, const TensorEntry& source) const {
  const int64_t rows = source.shape[0], cols = cols_of(source);
  whole_name_.clear();
  whole_.resize(static_cast<size_t>(rows * cols));
  OCTAVO_TRY(source_.read_f32(source, 0, rows, whole_));
  rotate_columns(tensor, whole_, cols);
  rotation_->apply(whole_.data(), cols);
  whole_name_ = tensor.name;
  return {};
}

Result<void> WeightTransform::rotated_rows(const Tensor& tensor, const TensorEntry& source, int64_t begin, int64_t end,
                                           std::span<float> out) const {
  const int64_t cols = cols_of(source);
  const auto size = static_cast<size_t>((end - begin) * cols);
  switch (tensor.kind->rows) {
    case Space::kResidual: {
      const std::lock_guard lock(mutex_);
      if (whole_name_ != tensor.name) OCTAVO_TRY(rotate_whole(tensor, source));
      std::copy_n(whole_.begin() + begin * cols, size, out.begin());
      return {};
    }
    case Space::kHeads: {
      const int64_t block = largest_power_of_two(config_.head_dim), first = begin / block * block,
                    last = (end + block - 1) / block * block;
      std::vector<float> rows(static_cast<size_t>((last - first) * cols));
      OCTAVO_TRY(source_.read_f32(source, first, last, rows));
      rotate_columns(tensor, rows, cols);
      hadamard_along(rows.data(), last - first, cols, block);
      std::copy_n(rows.begin() + (begin - first) * cols, size, out.begin());
      return {};
    }
    case Space::kFree:
    case Space::kGated:
      break;
  }
  OCTAVO_TRY(source_.read_f32(source, begin, end, out));
  rotate_columns(tensor, out.first(size), cols);
  return {};
}

Result<void> WeightTransform::read_f32(const TensorEntry& entry, int64_t begin, int64_t end,
                                       std::span<float> out) const {
  const auto tensor = tensor_of(entry.name);
  const TensorEntry& source = source_entry(entry);
  if (entry.plain || !tensor) return source_.read_f32(source, begin, end, out);
  const TensorKind& kind = *tensor->kind;
  const std::vector<float>* made = kind.makes ? factors(tensor->layer, *kind.makes) : nullptr;
  const auto cols = static_cast<size_t>(cols_of(entry));
  // Of q heads that share a KV head, the first one's factors are those of v's channel.
  const auto divisor = [&](size_t row) {
    if (kind.makes != kO) return (*made)[row];
    const auto head_dim = static_cast<size_t>(config_.head_dim);
    const auto shared = static_cast<size_t>(config_.num_heads / config_.num_kv_heads);
    return (*made)[row / head_dim * shared * head_dim + row % head_dim];
  };
  if (kind.is_norm || tensor->bias) {  // vectors
    OCTAVO_TRY(source_.read_f32(source, begin, end, out));
    if (kind.is_norm && rotation_) std::fill_n(out.begin(), cols, 1.0f);
    if (kind.rows == Space::kResidual && rotation_) rotation_->apply(out.data(), 1);
    if (kind.rows == Space::kHeads && rotation_)
      hadamard_blocks(out.data(), static_cast<int64_t>(cols), largest_power_of_two(config_.head_dim));
    if (made != nullptr)
      for (size_t c = 0; c < cols; ++c) out[c] /= divisor(c);
    if (made != nullptr && kind.is_norm)  // the quotient that set_factors() chose, which division may miss by a bit
      for (size_t c = 0; c < cols; ++c) out[c] = as_stored(out[c], norms_.find(entry.name)->second.element);
    return {};
  }
  OCTAVO_TRY(rotation_ ? rotated_rows(*tensor, source, begin, end, out) : source_.read_f32(source, begin, end, out));
  if (const auto* own = kind.input ? factors(tensor->layer, *kind.input) : nullptr)
    for (int64_t r = 0; r < end - begin; ++r)
      for (size_t c = 0; c < cols; ++c) out[static_cast<size_t>(r) * cols + c] *= (*own)[c];
  if (made != nullptr)
    for (int64_t r = 0; r < end - begin; ++r) {
      const float by = divisor(static_cast<size_t>(begin + r));
      for (size_t c = 0; c < cols; ++c) out[static_cast<size_t>(r) * cols + c] /= by;
    }
  return {};
}

Result<TransformedCheckpoint> transform_checkpoint(const Checkpoint& source, const TransformOptions& options) {
  OCTAVO_ASSIGN(std::unique_ptr<WeightTransform> reader, WeightTransform::create(source, options));
  WeightTransform* const transform = reader.get();
  OCTAVO_ASSIGN(Checkpoint checkpoint, Checkpoint::derive(source, transform->config(), std::move(reader)));
  return TransformedCheckpoint{std::move(checkpoint), transform};
}

}  // namespace octavo
