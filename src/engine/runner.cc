#include "engine/runner.h"

namespace octavo {

Batch ModelRunner::gather(const Step& step) {
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
  return {tokens_, sequences_, logit_rows_};
}

bool ModelRunner::run(const Step& step, int64_t highest_below) {
  const Batch batch = gather(step);
  const auto rows = std::ssize(logit_rows_);
  Decoder& decoder = model_->decoder();
  if (highest_below > 0 && rows > 0 && decoder.can_find_highest(rows)) {
    best_.resize(logit_rows_.size());
    decoder.forward_highest(batch, kv_, logits_.data(), stride_, highest_below, best_, model_->pool());
    head_bytes_ = static_cast<double>(decoder.greedy_head()->bytes_read());
    return true;
  }
  decoder.forward(batch, kv_, logits_.data(), stride_, model_->pool());
  head_bytes_ = rows > 0 ? static_cast<double>(decoder.head().bytes()) : 0.0;
  return false;
}

}  // namespace octavo
