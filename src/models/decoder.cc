#include "models/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace octavo {
namespace {

// At least `count` floats, contents undefined.
float* grow(AlignedArray<float>& memory, int64_t count) {
  if (memory.size() < static_cast<size_t>(count)) memory = AlignedArray<float>(static_cast<size_t>(count));
  return memory.data();
}

}  // namespace

void Decoder::attach_kv_scales(std::span<PagedKvLayer> layers) const {
  OCTAVO_CHECK(layers.size() == layers_.size(), "{} KV layers for {}", layers.size(), layers_.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].k_scales = layers_[i].k_scales.empty() ? nullptr : layers_[i].k_scales.data();
    layers[i].v_scales = layers_[i].v_scales.empty() ? nullptr : layers_[i].v_scales.data();
  }
}

void Decoder::forward(const Batch& batch, std::span<const PagedKvLayer> kv, float* logits, int64_t logits_stride,
                      ThreadPool& pool, const HiddenHook& hidden) {
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  const int64_t hidden_size = config_->hidden_size;
  float* x = grow(x_, rows * hidden_size);  // [rows, hidden_size], the residual stream, FP32
  embed(embedding_, batch.tokens, x, hidden_size);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (hidden) hidden(static_cast<int64_t>(i), x, hidden_size);
    attention_block(layers_[i], batch, kv[i], pool);  // x += o_proj(attention(norm(x)))
    mlp_block(layers_[i], rows, pool);                // x += down_proj(silu(gate) * up)
  }
  if (hidden) {
    AlignedArray<float> normed(static_cast<size_t>(rows * hidden_size));
    const Activation output{.format = plain_format(ElementType::kF32),
                            .rows = rows,
                            .cols = hidden_size,
                            .codes = reinterpret_cast<std::byte*>(normed.data()),
                            .code_stride = hidden_size * 4};
    producers_->rms_norm({x, hidden_size, final_norm_.data(), config_->rms_norm_eps, output}, pool);
    hidden(config_->num_layers, normed.data(), hidden_size);
  }
  if (!batch.logit_rows.empty()) logits_block(batch, logits, logits_stride, pool);
}

void Decoder::attention_block(const Layer& layer, const Batch& batch, const PagedKvLayer& kv, ThreadPool& pool) {
  const ModelConfig& c = *config_;
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  const int64_t stride = layer.qkv.rows();
  float* x = x_.data();
  float* qkv = grow(wide_, rows * stride);  // [rows, q | k | v]
  layer.qkv.run(
      rows,
      [&](const Activation& out) {
        producers_->rms_norm({x, c.hidden_size, layer.input_norm.data(), c.rms_norm_eps, out}, pool);
      },
      qkv, stride, false, activation_, pool, *scratch_);

  int64_t last = 0;
  for (const KvSequence& s : batch.sequences) last = std::max(last, s.position + s.num_rows);
  RopeKvCall rope{.qkv = qkv, .stride = stride, .rows = rows};
  rope.num_heads = static_cast<int>(c.num_heads);
  rope.num_kv_heads = static_cast<int>(c.num_kv_heads);
  rope.head_dim = static_cast<int>(c.head_dim);
  rope.q_norm = layer.q_norm.empty() ? nullptr : layer.q_norm.data();
  rope.k_norm = layer.k_norm.empty() ? nullptr : layer.k_norm.data();
  rope.eps = c.rms_norm_eps;
  rope.cos_sin = rope_->table(last);
  rope.sequences = batch.sequences.data();
  rope.num_sequences = static_cast<int64_t>(batch.sequences.size());
  rope.kv = kv;
  producers_->rope_kv(rope, pool);

  AttentionCall attention{.q = qkv, .q_stride = stride};
  attention.num_heads = rope.num_heads;
  attention.head_dim = rope.head_dim;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  attention.window = layer.window;
  attention.sequences = batch.sequences.data();
  attention.num_sequences = rope.num_sequences;
  attention.kv = kv;
  layer.o.run(
      rows,
      [&](const Activation& out) {
        attention.output = out;
        layer.attention->run(attention, pool, *scratch_);
      },
      x, c.hidden_size, true, activation_, pool, *scratch_);
}

void Decoder::mlp_block(const Layer& layer, int64_t rows, ThreadPool& pool) {
  const ModelConfig& c = *config_;
  float* x = x_.data();
  const int64_t stride = layer.gate_up.rows();
  float* gate_up = grow(wide_, rows * stride);  // [rows, gate | up]
  layer.gate_up.run(
      rows,
      [&](const Activation& out) {
        producers_->rms_norm({x, c.hidden_size, layer.post_norm.data(), c.rms_norm_eps, out}, pool);
      },
      gate_up, stride, false, activation_, pool, *scratch_);
  layer.down.run(
      rows,
      [&](const Activation& out) {
        producers_->silu_gate({gate_up, stride, out}, pool);
      },
      x, c.hidden_size, true, activation_, pool, *scratch_);
}

void Decoder::logits_block(const Batch& batch, float* logits, int64_t stride, ThreadPool& pool) {
  const int64_t hidden_size = config_->hidden_size;
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  float* picked = grow(wide_, rows * hidden_size);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(picked + r * hidden_size, x_.data() + batch.logit_rows[static_cast<size_t>(r)] * hidden_size,
                static_cast<size_t>(hidden_size) * sizeof(float));
  head_.run(
      rows,
      [&](const Activation& out) {
        producers_->rms_norm({picked, hidden_size, final_norm_.data(), config_->rms_norm_eps, out}, pool);
      },
      logits, stride, false, activation_, pool, *scratch_);
}

}  // namespace octavo
