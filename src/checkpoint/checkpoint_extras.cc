#include "checkpoint/checkpoint_extras.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace octavo {
namespace {

constexpr std::string_view kLayers = "model.layers.";

// The N of "model.layers.N.rest"; -1 elsewhere.
int64_t layer_of(std::string_view name) {
  if (!name.starts_with(kLayers)) return -1;
  int64_t layer = -1;
  const char* begin = name.data() + kLayers.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), layer);
  return error == std::errc() && end != name.data() + name.size() && *end == '.' && layer >= 0 ? layer : -1;
}

// Scales of the KV cache and of the queries, in the spellings of quantization tools.
bool is_cache_scale(std::string_view name) {
  if (name.find(".self_attn.") == std::string_view::npos) return false;
  constexpr std::string_view kEndings[] = {".k_scale",
                                           ".v_scale",
                                           ".q_scale",
                                           ".kv_scale",
                                           ".k_zero_point",
                                           ".v_zero_point",
                                           ".q_zero_point",
                                           ".k_cache.scale",
                                           ".v_cache.scale",
                                           ".prob_scale",
                                           ".k_proj.output_scale",
                                           ".v_proj.output_scale"};
  return std::any_of(std::begin(kEndings), std::end(kEndings), [&](auto ending) { return name.ends_with(ending); });
}

bool same_values(const TensorReader& tensors, const TensorEntry& a, const TensorEntry& b) {
  if (a.shape != b.shape || a.shape.size() != 2 || !a.plain || !b.plain) return false;
  if (a.plain->element != b.plain->element) return false;
  const int64_t rows = a.shape[0], step = std::max<int64_t>(1, (int64_t{4} << 20) / std::max<int64_t>(1, a.shape[1]));
  const size_t row_bytes = rows == 0 ? 0 : a.plain->data.size() / static_cast<size_t>(rows);
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t end = std::min(rows, row + step);
    const size_t offset = static_cast<size_t>(row) * row_bytes, size = static_cast<size_t>(end - row) * row_bytes;
    const bool same = std::memcmp(a.plain->data.data() + offset, b.plain->data.data() + offset, size) == 0;
    tensors.forget(a, row, end);
    tensors.forget(b, row, end);
    if (!same) return false;
  }
  return true;
}

}  // namespace

bool is_wide_element(ElementType element) {
  return element == ElementType::kF32 || element == ElementType::kF16 || element == ElementType::kBf16;
}

std::string known_extra(std::string_view name, const ModelConfig& config) {
  if (name.ends_with(".rotary_emb.inv_freq")) return "rotary frequencies are computed from the config";
  if (name == "rope_freqs.weight") return "its frequencies are part of the config";
  if (config.tied_embeddings && name.starts_with("lm_head."))
    return "the head is tied to the embedding (tie_word_embeddings), which is used";
  if (const int64_t layer = layer_of(name); layer >= config.num_layers)
    return fmt::format("layer {} lies past the {} layers of the model (multi-token prediction)", layer,
                       config.num_layers);
  if (is_cache_scale(name)) return "the KV cache format in use computes its scales, or needs none";
  if (name.ends_with(".weight_shape")) return "the shape is known from the weight itself";
  return "";
}

Result<void> check_head(const std::filesystem::path& path, const ModelConfig& config, const TensorReader& tensors,
                        std::vector<std::string>& notes) {
  const TensorEntry* head = tensors.find("lm_head.weight");
  if (!config.tied_embeddings) {
    if (head != nullptr) return {};
    return fail(
        {.what = "the head is missing",
         .where = fmt::format("{}, tensor lm_head.weight", path.string()),
         .expected = shape_text({config.vocab_size, config.hidden_size}),
         .remedy = "if the model ties its head to the embedding, set tie_word_embeddings to true in config.json"});
  }
  const TensorEntry* embedding = tensors.find("model.embed_tokens.weight");
  if (head != nullptr && embedding != nullptr && !same_values(tensors, *head, *embedding))
    notes.push_back(
        "lm_head.weight differs from the embedding, but tie_word_embeddings is true: the embedding is used");
  return {};
}

}  // namespace octavo
