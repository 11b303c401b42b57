// Logits of a whole prompt from a decoder, without an engine.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "models/decoder.h"

namespace octavo {

// [ids, vocab_size] under the plan.
inline std::vector<float> decoder_logits(const Checkpoint& checkpoint, const PrecisionPlan& plan,
                                         const std::vector<int32_t>& ids, Isa isa = best_isa()) {
  ThreadPool pool(2);
  auto decoder = Decoder::load(checkpoint, plan, isa, pool);
  if (!decoder) {
    ADD_FAILURE() << decoder.error().message();
    return {};
  }
  const ModelConfig& c = checkpoint.config();
  const auto rows = static_cast<int64_t>(ids.size()), pages = (rows + kPageTokens - 1) / kPageTokens;
  std::vector<int32_t> table(static_cast<size_t>(pages));
  std::iota(table.begin(), table.end(), 0);
  std::vector<AlignedBytes> memory;
  std::vector<PagedKvLayer> kv;
  for (const KvPlan& layer : plan.kv) {
    PagedKvLayer own{.k_format = layer.k,
                     .v_format = layer.v,
                     .layout = {layer.k.element, layer.v.element, static_cast<int>(c.head_dim)}};
    own.num_kv_heads = static_cast<int>(c.num_kv_heads);
    own.pages_per_extent = static_cast<int>(pages);
    own.head_stride = own.layout.page_bytes() * static_cast<size_t>(pages);
    own.extent_stride = own.head_stride * static_cast<size_t>(c.num_kv_heads);
    memory.emplace_back(own.extent_stride);
    own.base = memory.back().data();
    kv.push_back(own);
  }
  const KvSequence sequence{.row_begin = 0, .num_rows = rows, .position = 0, .page_table = table.data()};
  std::vector<int64_t> wanted(ids.size());
  std::iota(wanted.begin(), wanted.end(), 0);
  std::vector<float> logits(static_cast<size_t>(rows * c.vocab_size));
  decoder->forward({ids, {&sequence, 1}, wanted}, kv, logits.data(), c.vocab_size, pool);
  return logits;
}

}  // namespace octavo
