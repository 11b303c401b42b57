// Tokenizer: text <-> token ids, byte-level BPE and SentencePiece BPE, from tokenizer.json or GGUF metadata.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace octavo {

using TokenId = int32_t;

class Tokenizer {
 public:
  // A model folder (tokenizer.json, tokenizer_config.json), or a .gguf file.
  static Result<Tokenizer> open(const std::filesystem::path& model);
  static Result<Tokenizer> from_json(std::string_view tokenizer_json, std::string_view where);
  static Result<Tokenizer> from_gguf(const std::filesystem::path& file);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids of a text. add_special: what the post-processor adds (BOS). parse_special: added tokens such as <|im_start|>
  // that stand in the text are recognised (else they are spelled out in bytes; non-special added tokens are always
  // recognised). Invalid UTF-8 is replaced by U+FFFD, as the field does.
  std::vector<TokenId> encode(std::string_view text, bool add_special, bool parse_special = true) const;
  // What add_special puts before a text.
  std::span<const TokenId> leading_tokens() const;
  // Bytes of the ids, lossy (U+FFFD for invalid UTF-8), without special tokens when skip_special; without the space
  // that SentencePiece models put before a text, too.
  std::string decode(std::span<const TokenId> ids, bool skip_special = true) const;
  // The exact bytes of one token ("" for an unknown id); may be part of a UTF-8 sequence.
  std::string token_bytes(TokenId id) const;
  // Whether decode() takes a space off the front.
  bool strips_space() const;
  // The token as the vocabulary spells it ("Ġthe").
  std::string token_piece(TokenId id) const;
  std::optional<TokenId> token_id(std::string_view piece) const;
  bool is_special(TokenId id) const;
  size_t vocab_size() const;  // highest id + 1

  // tokenizer.json for this tokenizer (convert).
  std::string to_json() const;

 private:
  Tokenizer();
  struct State;
  std::unique_ptr<State> state_;
};

// Turns a stream of tokens into pieces of valid UTF-8: holds back an unfinished sequence until it is complete, gives
// U+FFFD exactly once for an invalid or unfinished tail. The concatenation equals Tokenizer::decode of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  std::string push(TokenId id);  // text that is now certain; often empty
  std::string finish();          // what is left

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool at_start_;  // a space to come is not part of the text
  std::string pending_;
};

}  // namespace octavo
