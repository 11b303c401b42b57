#include "checkpoint/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "checkpoint/gguf.h"

namespace octavo {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

constexpr std::pair<uint32_t, std::string_view> kTypeNames[] = {
    {0, "F32"},      {1, "F16"},     {2, "Q4_0"},     {3, "Q4_1"},   {6, "Q5_0"},    {7, "Q5_1"},   {8, "Q8_0"},
    {9, "Q8_1"},     {10, "Q2_K"},   {11, "Q3_K"},    {12, "Q4_K"},  {13, "Q5_K"},   {14, "Q6_K"},  {15, "Q8_K"},
    {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},
    {23, "IQ4_XS"},  {24, "I8"},     {25, "I16"},     {26, "I32"},   {27, "I64"},    {28, "F64"},   {29, "IQ1_M"},
    {30, "BF16"},    {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"}, {40, "NVFP4"},  {41, "Q1_0"},  {42, "Q2_0"}};

constexpr std::string_view kBlocks = "blk.";
constexpr Pair kTop[] = {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr Pair kLayer[] = {{"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
                           {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
                           {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
                           {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
                           {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
                           {"ffn_down", "mlp.down_proj"}};

template <size_t n>
std::string_view look_up(const Pair (&table)[n], std::string_view name) {
  for (const auto& [from, to] : table)
    if (from == name) return to;
  return {};
}

}  // namespace

std::string ggml_type_name(uint32_t id) {
  for (const auto& [known, name] : kTypeNames)
    if (known == id) return std::string(name);
  return fmt::format("type {}", id);
}

std::string supported_ggml_types() {
  std::string names;
  for (const auto& [id, name] : kTypeNames)
    if (find_ggml_type(id) != nullptr) names.append(names.empty() ? "" : ", ").append(name);
  return names;
}

bool gguf_layer_tensor(std::string_view name, std::string_view part, int64_t& layer) {
  if (!name.starts_with(kBlocks) || !name.ends_with(part)) return false;
  const char *begin = name.data() + kBlocks.size(), *end = name.data() + name.size() - part.size() - 1;
  if (begin >= end || *end != '.') return false;
  const auto [rest, error] = std::from_chars(begin, end, layer);
  return error == std::errc() && rest == end;
}

std::string gguf_hub_name(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::string(name);
  const std::string_view stem = name.substr(0, dot), suffix = name.substr(dot);  // ".weight", ".bias"
  if (const std::string_view top = look_up(kTop, stem); !top.empty()) return std::string(top).append(suffix);
  const size_t middle = stem.find('.', kBlocks.size());
  if (!stem.starts_with(kBlocks) || middle == std::string_view::npos) return std::string(name);
  const std::string_view layer = stem.substr(kBlocks.size(), middle - kBlocks.size());
  const bool digits =
      !layer.empty() && std::all_of(layer.begin(), layer.end(), [](char c) { return c >= '0' && c <= '9'; });
  const std::string_view part = look_up(kLayer, stem.substr(middle + 1));
  if (!digits || part.empty()) return std::string(name);
  return fmt::format("model.layers.{}.{}{}", layer, part, suffix);
}

}  // namespace octavo
