// Loading a decoder: every tensor of the checkpoint is used once, or named in the report.
#include <algorithm>

#include "models/decoder.h"

namespace octavo {
namespace {

Result<AlignedArray<float>> norm_weight(const Checkpoint& checkpoint, const std::string& name, int64_t size,
                                        LoadReport& report) {
  OCTAVO_ASSIGN(const std::vector<float> values, checkpoint.wide(name, {size}));
  AlignedArray<float> weight(static_cast<size_t>(size));
  std::copy(values.begin(), values.end(), weight.begin());
  report.norm_bytes += static_cast<size_t>(size) * sizeof(float);
  return weight;
}

// One scale for all heads, or one each.
std::vector<float> per_head(const std::vector<float>& scales, int64_t heads) {
  if (scales.size() == 1) return std::vector<float>(static_cast<size_t>(heads), scales[0]);
  return scales;
}

struct Loader {
  const Checkpoint& checkpoint;
  const PrecisionPlan& plan;
  Isa isa;
  ThreadPool& pool;
  LoadReport& report;
  std::vector<LinearModule> modules = checkpoint.config().linear_modules();

  Result<LinearGroup> group(int layer, std::initializer_list<Role> roles) {
    std::vector<LinearModule> members;
    for (const Role role : roles)
      for (const LinearModule& module : modules)
        if (module.layer == layer && module.role == role) members.push_back(module);
    OCTAVO_ASSIGN(LinearGroup loaded, LinearGroup::load(checkpoint, plan, members, isa, pool, report.linears));
    report.linear_bytes += loaded.bytes();
    return loaded;
  }

  Result<Decoder::Layer> layer(int index) {
    const ModelConfig& c = checkpoint.config();
    const std::string prefix = fmt::format("model.layers.{}.", index);
    Decoder::Layer out;
    OCTAVO_ASSIGN(out.input_norm, norm_weight(checkpoint, prefix + "input_layernorm.weight", c.hidden_size, report));
    OCTAVO_ASSIGN(out.post_norm,
                  norm_weight(checkpoint, prefix + "post_attention_layernorm.weight", c.hidden_size, report));
    if (c.qk_norm) {
      OCTAVO_ASSIGN(out.q_norm, norm_weight(checkpoint, prefix + "self_attn.q_norm.weight", c.head_dim, report));
      OCTAVO_ASSIGN(out.k_norm, norm_weight(checkpoint, prefix + "self_attn.k_norm.weight", c.head_dim, report));
    }
    OCTAVO_ASSIGN(out.qkv, group(index, {Role::kQ, Role::kK, Role::kV}));
    OCTAVO_ASSIGN(out.o, group(index, {Role::kO}));
    OCTAVO_ASSIGN(out.gate_up, group(index, {Role::kGate, Role::kUp}));
    OCTAVO_ASSIGN(out.down, group(index, {Role::kDown}));
    const KvPlan& kv = plan.kv[static_cast<size_t>(index)];
    OCTAVO_ASSIGN(const KvScales scales, checkpoint.kv_scales(index));
    if (kv.k.scale_time == ScaleTime::kStored) out.k_scales = per_head(scales.k, c.num_kv_heads);
    if (kv.v.scale_time == ScaleTime::kStored) out.v_scales = per_head(scales.v, c.num_kv_heads);
    const AttentionKey key{kv.k.element, kv.v.element, static_cast<int>(c.head_dim),
                           static_cast<int>(c.num_heads / c.num_kv_heads)};
    out.attention = &choose_attention(key, isa);
    out.window = c.sliding_window.empty() ? 0 : c.sliding_window[static_cast<size_t>(index)];
    return out;
  }
};

}  // namespace

Result<void> Decoder::load_embedding(const Checkpoint& checkpoint, const PrecisionPlan& plan) {
  const ModelConfig& c = checkpoint.config();
  OCTAVO_ASSIGN(const TensorEntry* entry, checkpoint.entry("model.embed_tokens.weight", {c.vocab_size, c.hidden_size}));
  if (entry->plain) {  // stays where it is mapped
    embedding_ = *entry->plain;
  } else {  // GGUF blocks: decoded once, to what the head has
    const bool f32 = plan.linear("lm_head").weight.element == ElementType::kF32;
    const ElementType element = f32 ? ElementType::kF32 : ElementType::kBf16;
    const auto row_bytes = static_cast<size_t>(c.hidden_size * element_bits(element) / 8);
    embedding_memory_ = AlignedBytes(static_cast<size_t>(c.vocab_size) * row_bytes);
    std::vector<float> row(static_cast<size_t>(c.hidden_size));
    for (int64_t r = 0; r < c.vocab_size; ++r) {
      OCTAVO_TRY(checkpoint.tensors().read_f32(*entry, r, r + 1, row));
      for (size_t i = 0; i < row.size(); ++i)
        store_element(element, embedding_memory_.data() + static_cast<size_t>(r) * row_bytes, i, row[i]);
    }
    embedding_ = {element, entry->shape, {embedding_memory_.data(), embedding_memory_.size()}};
    report_.notes.push_back(fmt::format("embedding: {} decoded to {}", entry->stored_type, element_name(element)));
  }
  report_.embedding_bytes = embedding_.data.size();
  return {};
}

Result<Decoder> Decoder::load(const Checkpoint& checkpoint, const PrecisionPlan& plan, Isa isa, ThreadPool& pool,
                              const std::function<void(LoadProgress)>& progress) {
  const ModelConfig& c = checkpoint.config();
  Decoder decoder;
  decoder.config_ = &c;
  decoder.producers_ = &choose_producers(isa);
  decoder.rope_ = std::make_unique<RopeCache>(c);
  decoder.scratch_ = std::make_unique<Scratch>();
  Loader loader{checkpoint, plan, isa, pool, decoder.report_};

  OCTAVO_TRY(decoder.load_embedding(checkpoint, plan));

  const int total = static_cast<int>(c.num_layers);
  for (int i = 0; i < total; ++i) {
    if (progress) progress({i, total});
    OCTAVO_ASSIGN(Layer layer, loader.layer(i));
    decoder.layers_.push_back(std::move(layer));
  }
  OCTAVO_ASSIGN(decoder.final_norm_, norm_weight(checkpoint, "model.norm.weight", c.hidden_size, decoder.report_));
  OCTAVO_ASSIGN(decoder.head_, loader.group(-1, {Role::kHead}));
  OCTAVO_ASSIGN(decoder.report_.unused, checkpoint.unused());
  decoder.report_.notes = checkpoint.notes();
  for (const std::string& note : plan.notes) decoder.report_.notes.push_back(note);
  if (progress) progress({total, total});
  return decoder;
}

}  // namespace octavo
