#include "models/decoder.h"

#include <algorithm>
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
    const auto data = [](const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); };
    layers[i].k_scales = data(layers_[i].k_scales);
    layers[i].v_scales = data(layers_[i].v_scales);
    layers[i].q_factors = data(layers_[i].q_factors);
    layers[i].k_zeros = data(layers_[i].k_zeros);
    layers[i].k_inverses = data(layers_[i].k_inverses);
  }
}

void Decoder::forward(const Batch& batch, std::span<const PagedKvLayer> kv, float* logits, int64_t logits_stride,
                      ThreadPool& pool, const HiddenHook& hidden) {
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  const int64_t hidden_size = config_->hidden_size;
  float* x = grow(x_, rows * hidden_size);  // [rows, hidden_size], the residual stream, FP32
  embed(embedding_.view, batch.tokens, x, hidden_size);
  const LayerRows at{.x = x, .rows = rows, .sequences = batch.sequences};
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (hidden) hidden(static_cast<int64_t>(i), x, hidden_size);
    runner_->attention_block(layers_[i], at, kv[i], pool);  // x += o_proj(attention(norm(x)))
    runner_->mlp_block(layers_[i], at, pool);               // x += down_proj(silu(gate) * up)
  }
  if (hidden) {
    AlignedArray<float> normed(static_cast<size_t>(rows * hidden_size));
    const Activation output{.format = plain_format(ElementType::kF32),
                            .rows = rows,
                            .cols = hidden_size,
                            .codes = reinterpret_cast<std::byte*>(normed.data()),
                            .code_stride = hidden_size * 4};
    runner_->norm(final_norm_, x, output, pool);
    hidden(config_->num_layers, normed.data(), hidden_size);
  }
  if (!batch.logit_rows.empty()) logits_block(batch, logits, logits_stride, pool);
}

void Decoder::logits_block(const Batch& batch, float* logits, int64_t stride, ThreadPool& pool) {
  const int64_t hidden_size = config_->hidden_size;
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  float* picked = grow(picked_, rows * hidden_size);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(picked + r * hidden_size, x_.data() + batch.logit_rows[static_cast<size_t>(r)] * hidden_size,
                static_cast<size_t>(hidden_size) * sizeof(float));
  runner_->project(
      head_, rows, [&](const Activation& out) { runner_->norm(final_norm_, picked, out, pool); }, logits, stride, pool);
}

}  // namespace octavo
