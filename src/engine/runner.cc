#include "engine/runner.h"

namespace octavo {

void ModelRunner::run(const Step& step) {
  tokens_.clear();
  sequences_.clear();
  logit_rows_.clear();
  for (const Share& share : step.shares) {
    const auto row_begin = static_cast<int64_t>(tokens_.size());
    sequences_.push_back({.row_begin = row_begin,
                          .num_rows = share.num_rows,
                          .position = share.position,
                          .page_table = share.pages.data()});
    tokens_.insert(tokens_.end(), share.tokens.begin(), share.tokens.end());
    for (int64_t row = share.first_logits; row < share.num_rows; ++row) logit_rows_.push_back(row_begin + row);
  }
  stride_ = (model_->config().vocab_size + 15) / 16 * 16;
  const auto count = static_cast<size_t>(stride_) * logit_rows_.size();
  if (logits_.size() < count) logits_ = AlignedArray<float>(count);
  model_->decoder().forward({tokens_, sequences_, logit_rows_}, kv_, logits_.data(), stride_, model_->pool());
}

}  // namespace octavo
