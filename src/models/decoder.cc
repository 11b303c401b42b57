#include "models/decoder.h"

#include <algorithm>
#include <cstring>

#include "models/layers/weight_loader.h"

namespace octavo {
void Decoder::attach_kv_scales(std::span<PagedKvLayer> layers) const {
  OCTAVO_CHECK(layers.size() == layers_.size(), "{} KV layers for {}", layers.size(), layers_.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto data = [](const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); };
    layers[i].k_scales = data(layers_[i].k_scales);
    layers[i].v_scales = data(layers_[i].v_scales);
    layers[i].clipping = &kv_clipping_[i];
    layers[i].q_factors = data(layers_[i].q_factors);
    layers[i].k_zeros = data(layers_[i].k_zeros);
    layers[i].k_inverses = data(layers_[i].k_inverses);
  }
}

Decoder::KvClipped Decoder::kv_clipped() const {
  KvClipped total;
  for (size_t i = 0; i < layers_.size(); ++i) {
    total.k += kv_clipping_[i].k.load(std::memory_order_relaxed);
    total.v += kv_clipping_[i].v.load(std::memory_order_relaxed);
  }
  return total;
}

std::vector<std::span<const std::byte>> Decoder::weight_blocks() const {
  std::vector<std::span<const std::byte>> blocks;
  const auto add = [&](const LinearGroup& group) {
    for (const LinearGroup::Input& input : group.inputs())
      for (const PackedLinear& layer : input.layers) blocks.emplace_back(layer.panels.data(), layer.panels.size());
  };
  for (const Layer& layer : layers_)
    for (const LinearGroup* group : layer.groups()) add(*group);
  add(head_);
  return blocks;
}

void Decoder::forward(const Batch& batch, std::span<const PagedKvLayer> kv, float* logits, int64_t logits_stride,
                      ThreadPool& pool, const HiddenHook& hidden) {
  layers_block(batch, kv, pool, hidden);
  if (batch.logit_rows.empty()) return;
  const float* picked = pick_rows(batch);
  runner_->project(
      head_, std::ssize(batch.logit_rows),
      [&](const Activation& out) { runner_->norm(final_norm_, picked, out, pool); }, logits, logits_stride, pool);
}

void Decoder::forward_highest(const Batch& batch, std::span<const PagedKvLayer> kv, float* logits,
                              int64_t logits_stride, int64_t limit, std::span<int32_t> best, ThreadPool& pool) {
  OCTAVO_CHECK(can_find_highest(std::ssize(batch.logit_rows)) && best.size() == batch.logit_rows.size(),
               "{} rows for a greedy head", batch.logit_rows.size());
  layers_block(batch, kv, pool, {});
  if (batch.logit_rows.empty()) return;
  const float* picked = pick_rows(batch);
  runner_->find_highest(
      *greedy_head_, {.input = {}, .logits = logits, .stride = logits_stride, .limit = limit, .best = best},
      [&](const Activation& out) { runner_->norm(final_norm_, picked, out, pool); }, pool);
}

void Decoder::layers_block(const Batch& batch, std::span<const PagedKvLayer> kv, ThreadPool& pool,
                           const HiddenHook& hidden) {
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  const int64_t hidden_size = config_->hidden_size;
  float* x = x_.grow(rows * hidden_size);  // [rows, hidden_size], the residual stream, FP32
  embed(embedding_.view, batch.tokens, x, hidden_size);
  const LayerRows at{.x = x, .rows = rows, .sequences = batch.sequences};
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (hidden) hidden(static_cast<int64_t>(i), x, hidden_size);
    runner_->attention_block(layers_[i], at, kv[i], pool);  // x += o_proj(attention(norm(x)))
    runner_->mlp_block(layers_[i], at, pool);  // x += down_proj(silu(gate) * up), of each expert that a row passes
  }
  if (!hidden) return;
  AlignedArray<float> normed(static_cast<size_t>(rows * hidden_size));
  runner_->norm(final_norm_, x, float_rows(normed.data(), rows, hidden_size), pool);
  hidden(config_->num_layers, normed.data(), hidden_size);
}

const float* Decoder::pick_rows(const Batch& batch) {
  const int64_t hidden_size = config_->hidden_size;
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  float* picked = picked_.grow(rows * hidden_size);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(picked + r * hidden_size, x_.data() + batch.logit_rows[static_cast<size_t>(r)] * hidden_size,
                static_cast<size_t>(hidden_size) * sizeof(float));
  return picked;
}

Result<void> Decoder::load_greedy_head(const Checkpoint& checkpoint, Isa isa, ThreadPool& pool, size_t smallest) {
  if (head_.bytes() < smallest) return {};
  const PackedLinear* head = GreedyHead::fits(head_);
  if (head == nullptr) return {};
  OCTAVO_ASSIGN(const StoredLinear stored, checkpoint.linear("lm_head"));
  const auto rows = [&](int64_t begin, int64_t end, std::span<float> values) {
    return read_stored_rows(checkpoint, stored, begin, end, values);
  };
  OCTAVO_ASSIGN(greedy_head_, GreedyHead::make(*head, rows, isa, pool));
  return {};
}

}  // namespace octavo
