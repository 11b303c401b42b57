// KV cache scales of a checkpoint: five spellings of the same thing (docs: "KV scales").
#include "checkpoint/dialect_kv.h"

#include <fmt/format.h>

#include <array>

#include "checkpoint/dialect.h"
#include "checkpoint/dialect_tensors.h"

namespace octavo {
namespace {

// Behind "model.layers.N.self_attn."; {} is k or v.
constexpr std::array<std::string_view, 6> kSpellings = {"{}_scale",          "attn.{}_scale",        "{}_proj.{}_scale",
                                                        "qkv_proj.{}_scale", "{}_proj.output_scale", "{}_cache.scale"};
constexpr std::array<std::string_view, 2> kBoth = {"kv_scale", "attn.kv_scale"};
constexpr std::array<std::string_view, 3> kQueries = {"q_scale", "attn.q_scale", "q_proj.q_scale"};

std::string attention(int layer) {
  return fmt::format("model.layers.{}.self_attn.", layer);
}

std::string spell(std::string_view pattern, char side) {
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern.substr(i, 2) == "{}") {
      text += side;
      ++i;
    } else {
      text += pattern[i];
    }
  }
  return text;
}

// Every tensor that could be this side's scale.
std::vector<const TensorEntry*> candidates(int layer, char side, const TensorReader& tensors) {
  std::vector<const TensorEntry*> found;
  const auto look = [&](std::string_view name) {
    if (const TensorEntry* entry = tensors.find(attention(layer) + std::string(name))) found.push_back(entry);
  };
  for (const std::string_view pattern : kSpellings) look(spell(pattern, side));
  for (const std::string_view name : kBoth) look(name);
  return found;
}

// One value, or one per KV head. Two spellings must agree.
Result<std::vector<float>> read_side(int layer, char side, int64_t heads, const TensorReader& tensors,
                                     std::set<std::string>& used) {
  std::vector<float> scales;
  const TensorEntry* first = nullptr;
  for (const TensorEntry* entry : candidates(layer, side, tensors)) {
    OCTAVO_ASSIGN(const std::vector<float> values, read_scales(*entry, std::max<int64_t>(heads, 1)));
    const auto count = static_cast<int64_t>(values.size());
    if (count != 1 && count != heads)
      return fail({.what = "KV scale has the wrong shape",
                   .where = tensor_where(*entry),
                   .found = shape_text(entry->shape),
                   .expected = fmt::format("one value, or one for each of {} KV heads", heads)});
    if (const auto bad = std::find(values.begin(), values.end(), 0.0f); bad != values.end())
      return fail(
          {.what = "KV scale is zero", .where = tensor_where(*entry), .found = "0", .expected = "positive scales"});
    used.insert(entry->name);
    if (first != nullptr && values != scales)
      return fail({.what = "two KV scales for the same thing differ",
                   .where = tensor_where(*entry),
                   .found = fmt::format("{} and {}", first->name, entry->name),
                   .expected = "one of them, or equal values"});
    first = entry;
    scales = values;
  }
  return scales;
}

}  // namespace

Result<void> plan_kv(const std::optional<KvRule>& rule, const ModelConfig& config, const TensorReader& tensors,
                     PrecisionPlan& plan) {
  const ElementType element = rule ? rule->element : ElementType::kE4m3;
  TensorFormat stored = row_format(element), computed = row_format(element);
  stored.scale_time = ScaleTime::kStored;
  int layers_with_scales = 0;
  std::vector<std::string> missing;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const bool k = !candidates(layer, 'k', tensors).empty(), v = !candidates(layer, 'v', tensors).empty();
    if (k && v) ++layers_with_scales;
    KvPlan kv{plain_format(ElementType::kBf16), plain_format(ElementType::kBf16), "checkpoint"};
    if (k || v || rule) {
      kv.k = k ? stored : computed;
      kv.v = v ? stored : computed;
      kv.reason = k && v   ? "checkpoint, stored scales"
                  : k || v ? fmt::format("checkpoint, stored {} scale only", k ? "k" : "v")
                           : "checkpoint, scales per token and head";
    }
    if ((rule && rule->stored && !(k && v)) || k != v)
      missing.push_back(fmt::format("layer {} has no stored {} scale: computed per token and head", layer,
                                    k   ? "v"
                                    : v ? "k"
                                        : "k and v"));
    plan.kv.push_back(std::move(kv));
  }
  if (layers_with_scales > 0 || !missing.empty())
    plan.notes.push_back(fmt::format("KV scales: {}/{} layers", layers_with_scales, config.num_layers));
  // A layer without scales beside layers that have them is as suspicious as a promise not kept.
  if (layers_with_scales > 0 && !(rule && rule->stored))
    for (int layer = 0; layer < config.num_layers; ++layer) {
      KvPlan& kv = plan.kv[static_cast<size_t>(layer)];
      if (kv.k.scaled() || kv.v.scaled()) continue;
      kv = {computed, computed, "checkpoint, scales per token and head"};
      missing.push_back(fmt::format("layer {} has no stored k and v scale: computed per token and head", layer));
    }
  plan.notes.insert(plan.notes.end(), missing.begin(), missing.end());
  return {};
}

Result<KvScales> read_kv_scales(int layer, const StoredQuantization&, const ModelConfig& config,
                                const TensorReader& tensors, std::set<std::string>& used,
                                std::vector<std::string>& notes) {
  KvScales scales;
  OCTAVO_ASSIGN(scales.k, read_side(layer, 'k', config.num_kv_heads, tensors, used));
  OCTAVO_ASSIGN(scales.v, read_side(layer, 'v', config.num_kv_heads, tensors, used));
  for (const std::string_view name : kQueries)
    if (const TensorEntry* entry = tensors.find(attention(layer) + std::string(name))) {
      used.insert(entry->name);
      notes.push_back(fmt::format("{} is not used: queries are not quantized", entry->name));
    }
  return scales;
}

}  // namespace octavo
