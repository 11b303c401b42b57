// Text from a stream of tokens, never half a character.
#include <utility>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace octavo {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special), at_start_(tokenizer.strips_space()) {}

std::string StreamDecoder::push(TokenId id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->token_bytes(id);
  if (at_start_ && !pending_.empty()) {
    if (pending_.starts_with(' ')) pending_.erase(0, 1);
    at_start_ = false;
  }
  // All but a sequence at the very end that more bytes may complete.
  size_t certain = 0;
  while (certain < pending_.size()) {
    const Utf8Step step = utf8_step(pending_, certain);
    if (step.truncated) break;
    certain += static_cast<size_t>(step.size);
  }
  std::string text = replace_invalid_utf8(std::string_view(pending_).substr(0, certain));
  pending_.erase(0, certain);
  return text;
}

std::string StreamDecoder::finish() {
  return replace_invalid_utf8(std::exchange(pending_, {}));
}

}  // namespace octavo
