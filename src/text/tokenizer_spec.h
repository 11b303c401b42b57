// What a tokenizer file says, before it is put to work. For .cc files only: it brings the JSON library.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/vocabulary.h"

namespace octavo {

struct TokenizerSpec {
  explicit TokenizerSpec(size_t id_limit) : vocabulary(id_limit) {}

  Vocabulary vocabulary;
  Bpe bpe;  // finished
  std::vector<AddedToken> added;
  Json normalizer, pre_tokenizer, post_processor, decoder;  // as in tokenizer.json
};

Result<TokenizerSpec> parse_tokenizer_json(std::string_view text, std::string_view where);
// Adds what tokenizer_config.json knows beyond tokenizer.json: further added tokens, and BOS or EOS if it asks for
// them and the post-processor adds none.
Result<void> apply_tokenizer_config(TokenizerSpec& spec, std::string_view text, std::string_view where);
Result<TokenizerSpec> read_gguf_tokenizer(const std::filesystem::path& file);

// The names of tokenizer.ggml.pre that are known, for messages.
std::string known_gguf_pre_tokenizers();

// An added token from its JSON object (all but the id).
Result<AddedToken> added_token_from(const Json& object);
// Gives `token` its id and, if it is new, lists it. Error: the id means another token, or the token has another id.
Result<void> add_token(TokenizerSpec& spec, int64_t id, AddedToken token, bool is_new = true);
// A post-processor that puts ids around every text.
Json template_post_processor(const std::vector<AddedToken>& before, const std::vector<AddedToken>& after);

// tokenizer.json for a spec.
std::string write_tokenizer_json(const TokenizerSpec& spec);

// Ids that the post-processor puts before and after a text.
struct PostProcessor {
  std::vector<TokenId> before, after;
  static Result<PostProcessor> from_json(const Json& json);
};

}  // namespace octavo
