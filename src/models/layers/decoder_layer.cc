#include "models/layers/decoder_layer.h"

#include <algorithm>
#include <cmath>

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

constexpr int64_t kRowsAtOnce = 4;  // that a thread gathers or adds at least

}  // namespace

LinearGroup& DecoderLayer::group(const LinearPlace& place) {
  const auto expert = static_cast<size_t>(place.expert);
  switch (place.input) {
    case LinearInput::kQkv:
      return qkv;
    case LinearInput::kO:
      return o;
    case LinearInput::kGateUp:
      return place.expert < 0 ? gate_up : experts[expert].gate_up;
    case LinearInput::kDown:
      return place.expert < 0 ? down : experts[expert].down;
    case LinearInput::kRouter:
      return router;
    case LinearInput::kHead:
      break;
  }
  OCTAVO_CHECK(false, "the head is no group of layer {}", place.layer);
}

std::vector<const LinearGroup*> DecoderLayer::groups() const {
  if (experts.empty()) return {&qkv, &o, &gate_up, &down};
  std::vector<const LinearGroup*> all = {&qkv, &o, &router};
  for (const Expert& expert : experts) all.insert(all.end(), {&expert.gate_up, &expert.down});
  return all;
}

LayerLoader::LayerLoader(const Checkpoint& checkpoint, const PrecisionPlan& plan, Isa isa, ThreadPool& pool,
                         LoadReport& report)
    : checkpoint_(checkpoint), plan_(plan), isa_(isa), pool_(pool), report_(report) {
  for (LinearModule& module : checkpoint.config().linear_modules())
    modules_[place_of(module)].push_back(std::move(module));
}

Result<LinearGroup> LayerLoader::group(const LinearPlace& place, LinearSource source) const {
  OCTAVO_ASSIGN(LinearGroup loaded,
                LinearGroup::load(checkpoint_, plan_, modules_.at(place), source, isa_, pool_, report_.linears));
  report_.linear_bytes += loaded.bytes();
  return loaded;
}

Result<LinearGroup> LayerLoader::group(const LinearPlace& place) const {
  return group(place, [&](const LinearModule& module) { return checkpoint_.linear(module.name); });
}

Result<AlignedArray<float>> LayerLoader::final_norm() const {
  return norm_weight(checkpoint_, "model.norm.weight", checkpoint_.config().hidden_size, report_);
}

Result<DecoderLayer> LayerLoader::frame(int index) const {
  const ModelConfig& c = checkpoint_.config();
  const std::string prefix = fmt::format("model.layers.{}.", index);
  DecoderLayer out;
  OCTAVO_ASSIGN(out.input_norm, norm_weight(checkpoint_, prefix + "input_layernorm.weight", c.hidden_size, report_));
  OCTAVO_ASSIGN(out.post_norm,
                norm_weight(checkpoint_, prefix + "post_attention_layernorm.weight", c.hidden_size, report_));
  if (c.qk_norm) {
    OCTAVO_ASSIGN(out.q_norm, norm_weight(checkpoint_, prefix + "self_attn.q_norm.weight", c.head_dim, report_));
    OCTAVO_ASSIGN(out.k_norm, norm_weight(checkpoint_, prefix + "self_attn.k_norm.weight", c.head_dim, report_));
  }
  OCTAVO_TRY(load_kv(index, out));
  const KvPlan& kv = plan_.kv[static_cast<size_t>(index)];
  const AttentionKey key{kv.k.element, kv.v.element, static_cast<int>(c.head_dim),
                         static_cast<int>(c.num_heads / c.num_kv_heads)};
  out.attention = &choose_attention(key, isa_);
  out.window = c.sliding_window.empty() ? 0 : c.sliding_window[static_cast<size_t>(index)];
  if (c.has_experts(index)) out.experts.resize(static_cast<size_t>(c.experts->count));
  return out;
}

Result<std::vector<float>> LayerLoader::stored_kv_scales(int index, bool key) const {
  const auto layer = static_cast<size_t>(index);
  const KvPlan& kv = plan_.kv[layer];
  const TensorFormat& format = key ? kv.k : kv.v;
  const KvOptions& options = key ? kv.k_options : kv.v_options;
  OCTAVO_ASSIGN(const KvScales stored, checkpoint_.kv_scales(index));
  if (!format.scaled() || format.scale_time != ScaleTime::kStored) return std::vector<float>();
  if (const KvCalibration* calibration = checkpoint_.kv_calibration())
    return calibration->scales(layer, key, format, options);
  const std::vector<float>& scales = key ? stored.k : stored.v;
  const KvPlan& written = checkpoint_.stored_plan().kv[layer];
  const bool fits = !scales.empty() && (key ? written.k : written.v).element == format.element;
  if (fits && !options.channels) return per_head(scales, checkpoint_.config().num_kv_heads);
  return fail({.what = "the model has no calibrated scales for this KV cache",
               .where = fmt::format("{}, layer {}", checkpoint_.path().string(), index),
               .found = scales.empty() ? "none" : fmt::format("scales of {}", (key ? written.k : written.v).describe()),
               .expected = fmt::format("values for {} {}", key ? "K" : "V", kv_side_name(format, options)),
               .remedy = "make them with octavo quantize --calibrate FILE --kv TYPE, name their file with "
                         "--kv-calibration, or leave the option out"});
}

Result<void> LayerLoader::load_kv(int index, DecoderLayer& out) const {
  const auto layer = static_cast<size_t>(index);
  const KvPlan& kv = plan_.kv[layer];
  OCTAVO_ASSIGN(out.k_scales, stored_kv_scales(index, true));
  OCTAVO_ASSIGN(out.v_scales, stored_kv_scales(index, false));
  const KvCalibration* calibration = checkpoint_.kv_calibration();
  if (kv.k_options.temperature && calibration == nullptr)
    return fail({.what = "the model has no calibrated query temperature",
                 .where = fmt::format("{}, layer {}", checkpoint_.path().string(), index),
                 .remedy = "fit it with octavo quantize --calibrate FILE --kv TYPE --refit-temperature"});
  const float temperature = kv.k_options.temperature ? calibration->layers[layer].temperature : 1.0f;
  if (kv.k_options.channels) {
    KvCalibration::Channels channels = calibration->channels(layer, kv.k);
    out.k_zeros = std::move(channels.zeros);
    for (const float scale : channels.scales) {
      out.q_factors.push_back(scale * temperature);
      out.k_inverses.push_back(1.0f / scale);
    }
  } else if (kv.k_options.temperature) {
    out.q_factors.assign(static_cast<size_t>(checkpoint_.config().kv_size()), temperature);
  }
  return {};
}

Result<DecoderLayer> LayerLoader::load(int index) const {
  OCTAVO_ASSIGN(DecoderLayer out, frame(index));
  for (const LinearPlace& place : layer_places(checkpoint_.config(), index)) {
    OCTAVO_ASSIGN(out.group(place), group(place));
  }
  return out;
}

Result<Embedding> load_embedding(const Checkpoint& checkpoint, const PrecisionPlan& plan, LoadReport& report) {
  const ModelConfig& c = checkpoint.config();
  Embedding embedding;
  OCTAVO_ASSIGN(const TensorEntry* entry, checkpoint.entry("model.embed_tokens.weight", {c.vocab_size, c.hidden_size}));
  if (entry->plain) {  // stays where it is mapped
    embedding.view = *entry->plain;
  } else {  // GGUF blocks: decoded once, to what the head has
    const bool f32 = plan.linear("lm_head").weight.element == ElementType::kF32;
    const ElementType element = f32 ? ElementType::kF32 : ElementType::kBf16;
    const auto row_bytes = static_cast<size_t>(c.hidden_size * element_bits(element) / 8);
    embedding.memory = AlignedBytes(static_cast<size_t>(c.vocab_size) * row_bytes);
    std::vector<float> row(static_cast<size_t>(c.hidden_size));
    for (int64_t r = 0; r < c.vocab_size; ++r) {
      OCTAVO_TRY(checkpoint.tensors().read_f32(*entry, r, r + 1, row));
      for (size_t i = 0; i < row.size(); ++i)
        store_element(element, embedding.memory.data() + static_cast<size_t>(r) * row_bytes, i, row[i]);
    }
    embedding.view = {element, entry->shape, {embedding.memory.data(), embedding.memory.size()}};
    report.notes.push_back(fmt::format("embedding: {} decoded to {}", entry->stored_type, element_name(element)));
  }
  report.embedding_bytes = embedding.view.data.size();
  return embedding;
}

LayerRunner::LayerRunner(const ModelConfig& config, Isa isa)
    : config_(&config),
      producers_(&choose_producers(isa)),
      rope_(std::make_unique<RopeCache>(config)),
      scratch_(std::make_unique<Scratch>()) {}

void LayerRunner::attention_block(const DecoderLayer& layer, const LayerRows& r, const PagedKvLayer& kv,
                                  ThreadPool& pool) {
  project_qkv(
      layer.qkv, layer, r, kv, [&](const Activation& out) { norm(layer.input_norm, r.x, out, pool); }, pool);
  add_projection(
      layer.o, r, [&](const Activation& out) { attend(layer, r, kv, out, pool); }, pool);
}

void LayerRunner::mlp_block(const DecoderLayer& layer, const LayerRows& r, ThreadPool& pool) {
  layer.experts.empty() ? dense_block(layer, r, pool) : experts_block(layer, r, pool);
}

void LayerRunner::dense_block(const DecoderLayer& layer, const LayerRows& r, ThreadPool& pool) {
  project_gate_up(
      layer.gate_up, r.rows, [&](const Activation& out) { norm(layer.post_norm, r.x, out, pool); }, pool);
  add_projection(
      layer.down, r, [&](const Activation& out) { silu_gate(out, pool); }, pool);
}

void LayerRunner::experts_block(const DecoderLayer& layer, const LayerRows& r, ThreadPool& pool) {
  route(layer, r, pool);
  for (int64_t e = 0; e < std::ssize(layer.experts); ++e) {
    const DecoderLayer::Expert& expert = layer.experts[static_cast<size_t>(e)];
    const int64_t rows = std::ssize(routing_.rows_of(e));
    if (rows == 0) continue;
    project_gate_up(
        expert.gate_up, rows, [&](const Activation& out) { expert_rows(e, out, pool); }, pool);
    add_expert(
        expert.down, e, [&](const Activation& out) { silu_gate(out, pool); }, pool);
  }
  add_experts(r, pool);
}

void LayerRunner::norm(const AlignedArray<float>& weight, const float* x, const Activation& out,
                       ThreadPool& pool) const {
  producers_->rms_norm({x, config_->hidden_size, weight.data(), config_->rms_norm_eps, out}, pool);
}

void LayerRunner::project_qkv(const LinearGroup& qkv, const DecoderLayer& layer, const LayerRows& r,
                              const PagedKvLayer& kv, Produce produce, ThreadPool& pool) {
  wide_stride_ = qkv.rows();
  project(qkv, r.rows, produce, wide_.grow(r.rows * wide_stride_), wide_stride_, pool);
  int64_t last = 0;
  for (const KvSequence& s : r.sequences) last = std::max(last, s.position + s.num_rows);
  RopeKvCall rope{.qkv = wide_.data(), .stride = wide_stride_, .rows = r.rows};
  rope.num_heads = static_cast<int>(config_->num_heads);
  rope.num_kv_heads = static_cast<int>(config_->num_kv_heads);
  rope.head_dim = static_cast<int>(config_->head_dim);
  rope.q_norm = layer.q_norm.empty() ? nullptr : layer.q_norm.data();
  rope.k_norm = layer.k_norm.empty() ? nullptr : layer.k_norm.data();
  rope.eps = config_->rms_norm_eps;
  rope.cos_sin = rope_->table(last);
  rope.sequences = r.sequences.data();
  rope.num_sequences = static_cast<int64_t>(r.sequences.size());
  rope.kv = kv;
  producers_->rope_kv(rope, pool);
}

void LayerRunner::attend(const DecoderLayer& layer, const LayerRows& r, const PagedKvLayer& kv, const Activation& out,
                         ThreadPool& pool) const {
  AttentionCall attention{.q = wide_.data(), .q_stride = wide_stride_};
  attention.num_heads = static_cast<int>(config_->num_heads);
  attention.head_dim = static_cast<int>(config_->head_dim);
  attention.scale = 1.0f / std::sqrt(static_cast<float>(config_->head_dim));
  attention.window = layer.window;
  attention.sequences = r.sequences.data();
  attention.num_sequences = static_cast<int64_t>(r.sequences.size());
  attention.kv = kv;
  attention.output = out;
  layer.attention->run(attention, pool, *scratch_);
}

void LayerRunner::project_gate_up(const LinearGroup& gate_up, int64_t rows, Produce produce, ThreadPool& pool) {
  wide_stride_ = gate_up.rows();
  project(gate_up, rows, produce, wide_.grow(rows * wide_stride_), wide_stride_, pool);
}

void LayerRunner::silu_gate(const Activation& out, ThreadPool& pool) const {
  producers_->silu_gate({wide_.data(), wide_stride_, config_->down_hadamard, out}, pool);
}

void LayerRunner::add_projection(const LinearGroup& group, const LayerRows& r, Produce produce, ThreadPool& pool) {
  group.run(r.rows, produce, r.x, config_->hidden_size, true, activation_, pool, *scratch_);
}

void LayerRunner::route(const DecoderLayer& layer, const LayerRows& r, ThreadPool& pool) {
  const int64_t hidden = config_->hidden_size, experts = std::ssize(layer.experts);
  norm(layer.post_norm, r.x, float_rows(normed_.grow(r.rows * hidden), r.rows, hidden), pool);
  float* const scores = scores_.grow(r.rows * experts);
  const auto quantize = [&](const Activation& out) { producers_->quantize({normed_.data(), hidden, out}, pool); };
  project(layer.router, r.rows, quantize, scores, experts, pool);
  routing_.assign(scores, r.rows, *config_->experts, pool);
  std::fill_n(sum_.grow(r.rows * hidden), r.rows * hidden, 0.0f);
}

void LayerRunner::expert_rows(int64_t expert, const Activation& out, ThreadPool& pool) {
  const int64_t hidden = config_->hidden_size;
  const std::span<const Routing::Row> rows = routing_.rows_of(expert);
  float* const gathered = gathered_.grow(std::ssize(rows) * hidden);
  pool.parallel_for(std::ssize(rows), kRowsAtOnce, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i)
      std::copy_n(normed_.data() + rows[static_cast<size_t>(i)].row * hidden, hidden, gathered + i * hidden);
  });
  producers_->quantize({gathered, hidden, out}, pool);
}

void LayerRunner::add_expert(const LinearGroup& down, int64_t expert, Produce produce, ThreadPool& pool) {
  const int64_t hidden = config_->hidden_size;
  const std::span<const Routing::Row> rows = routing_.rows_of(expert);
  float* const out = expert_out_.grow(std::ssize(rows) * hidden);
  project(down, std::ssize(rows), produce, out, hidden, pool);
  pool.parallel_for(std::ssize(rows), kRowsAtOnce, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const auto [row, weight] = rows[static_cast<size_t>(i)];
      float* const sum = sum_.data() + row * hidden;
      for (int64_t c = 0; c < hidden; ++c) sum[c] += weight * out[i * hidden + c];
    }
  });
}

void LayerRunner::add_experts(const LayerRows& r, ThreadPool& pool) const {
  const int64_t hidden = config_->hidden_size;
  pool.parallel_for(r.rows, kRowsAtOnce, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * hidden; i < end * hidden; ++i) r.x[i] += sum_[static_cast<size_t>(i)];
  });
}

void LayerRunner::project(const LinearGroup& group, int64_t rows, Produce produce, float* output, int64_t stride,
                          ThreadPool& pool) {
  group.run(rows, produce, output, stride, false, activation_, pool, *scratch_);
}

void LayerRunner::find_highest(GreedyHead& head, GreedySearch search, Produce produce, ThreadPool& pool) {
  search.input = activation_.resize(plain_format(ElementType::kBf16), std::ssize(search.best), config_->hidden_size);
  produce(search.input);
  head.find(search, pool, *scratch_);
}

}  // namespace octavo
