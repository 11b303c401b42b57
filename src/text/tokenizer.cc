#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "base/file.h"
#include "text/piece_decoder.h"
#include "text/pre_tokenizer.h"
#include "text/spec_json.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"

namespace octavo {
namespace {

constexpr size_t kMaxConfigBytes = size_t{8} << 20;
constexpr size_t kSharedCacheLog2 = 14, kOwnCacheLog2 = 10;

}  // namespace

struct Tokenizer::State {
  explicit State(TokenizerSpec s) : spec(std::move(s)), cache(kSharedCacheLog2) {}

  TokenizerSpec spec;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  PieceDecoder decoder;
  AddedTokenMatcher raw_matcher, normalized_matcher;
  std::unordered_map<std::string_view, TokenId> added_ids;
  std::vector<bool> special;
  mutable std::mutex cache_mutex;
  mutable PieceCache cache;

  static Result<Tokenizer> make(TokenizerSpec spec, std::string_view where);
  Result<void> prepare();
  Result<void> prepare_added_tokens();
  Result<void> check_ids(const std::vector<TokenId>& ids) const;
  void encode_text(std::string_view text, bool parse_special, PieceCache& pieces, std::vector<TokenId>& ids) const;
};

Result<Tokenizer> Tokenizer::State::make(TokenizerSpec spec, std::string_view where) {
  Tokenizer tokenizer;
  tokenizer.state_ = std::make_unique<State>(std::move(spec));
  auto result = tokenizer.state_->prepare();
  if (result) return tokenizer;
  Error error = std::move(result).error();
  error.where = error.where.empty() ? std::string(where) : fmt::format("{}, {}", where, error.where);
  return fail(std::move(error));
}

Result<void> Tokenizer::State::prepare() {
  OCTAVO_ASSIGN(normalizer, Normalizer::from_json(spec.normalizer));
  const bool byte_fallback = spec.bpe.options().byte_fallback;
  OCTAVO_ASSIGN(pre_tokenizer, PreTokenizer::from_json(spec.pre_tokenizer, !byte_fallback));
  OCTAVO_ASSIGN(post_processor, PostProcessor::from_json(spec.post_processor));
  OCTAVO_ASSIGN(decoder, PieceDecoder::from_json(spec.decoder, byte_fallback));
  OCTAVO_TRY(check_ids(post_processor.before));
  OCTAVO_TRY(check_ids(post_processor.after));
  return prepare_added_tokens();
}

Result<void> Tokenizer::State::check_ids(const std::vector<TokenId>& ids) const {
  for (const TokenId id : ids)
    if (!spec.vocabulary.contains(id))
      return fail({.what = "post-processor adds a token that does not exist",
                   .where = "post_processor",
                   .found = fmt::format("id {}", id),
                   .expected = "an id of the vocabulary or of an added token"});
  return {};
}

Result<void> Tokenizer::State::prepare_added_tokens() {
  special.assign(spec.vocabulary.size(), false);
  for (const AddedToken& token : spec.added) {
    const auto [place, is_new] = added_ids.emplace(token.content, token.id);
    if (!is_new && place->second != token.id)
      return fail({.what = "two added tokens have the same content",
                   .where = fmt::format("added token \"{}\"", token.content),
                   .found = fmt::format("ids {} and {}", place->second, token.id)});
    if (token.special) special[static_cast<size_t>(token.id)] = true;
    if (token.normalized) {
      normalized_matcher.add(token, normalizer.apply(token.content));
    } else {
      raw_matcher.add(token, token.content);
    }
  }
  return {};
}

void Tokenizer::State::encode_text(std::string_view text, bool parse_special, PieceCache& pieces,
                                   std::vector<TokenId>& ids) const {
  std::vector<AddedTokenMatcher::Part> raw_parts, parts;
  PreTokenizer::Scratch scratch;
  std::string normalized;
  raw_matcher.split(text, parse_special, raw_parts);
  for (const auto& raw : raw_parts) {
    if (raw.id >= 0) {
      ids.push_back(raw.id);
      continue;
    }
    std::string_view plain = raw.text;
    if (!normalizer.changes_nothing()) plain = normalized = normalizer.apply(raw.text);
    parts.clear();
    normalized_matcher.split(plain, parse_special, parts);
    for (const auto& part : parts) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      const bool at_start = raw.text.data() == text.data() && part.text.data() == plain.data();
      const std::string_view split_text = pre_tokenizer.split(part.text, scratch, at_start);
      for (const TextRange range : scratch.ranges)
        spec.bpe.encode(spec.vocabulary, split_text.substr(range.begin, range.end - range.begin), pieces, ids);
    }
  }
}

Tokenizer::Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::open(const std::filesystem::path& model) {
  if (model.extension() == ".gguf") return from_gguf(model);
  const auto file = model / "tokenizer.json", config_file = model / "tokenizer_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    return fail({.what = "model has no tokenizer",
                 .where = model.string(),
                 .expected = "tokenizer.json in the model's folder, or a .gguf file",
                 .remedy = "copy the tokenizer.json of the model into its folder"});
  OCTAVO_ASSIGN(const std::string text, read_text_file(file));
  OCTAVO_ASSIGN(TokenizerSpec spec, parse_tokenizer_json(text, file.string()));
  if (std::filesystem::exists(config_file, ignored)) {
    OCTAVO_ASSIGN(const std::string config, read_text_file(config_file, kMaxConfigBytes));
    OCTAVO_TRY(apply_tokenizer_config(spec, config, config_file.string()));
  }
  return State::make(std::move(spec), file.string());
}

Result<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json, std::string_view where) {
  OCTAVO_ASSIGN(TokenizerSpec spec, parse_tokenizer_json(tokenizer_json, where));
  return State::make(std::move(spec), where);
}

Result<Tokenizer> Tokenizer::from_gguf(const std::filesystem::path& file) {
  OCTAVO_ASSIGN(TokenizerSpec spec, read_gguf_tokenizer(file));
  return State::make(std::move(spec), file.string());
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special, bool parse_special) const {
  std::string repaired;
  if (!is_valid_utf8(text)) text = repaired = replace_invalid_utf8(text);
  const State& state = *state_;
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4 + 8);
  if (add_special) ids = state.post_processor.before;
  // One caller at a time has the large cache; others need not wait for it.
  if (const std::unique_lock lock(state.cache_mutex, std::try_to_lock); lock.owns_lock()) {
    state.encode_text(text, parse_special, state.cache, ids);
  } else {
    PieceCache own(kOwnCacheLog2);
    state.encode_text(text, parse_special, own, ids);
  }
  if (add_special) ids.insert(ids.end(), state.post_processor.after.begin(), state.post_processor.after.end());
  return ids;
}

std::span<const TokenId> Tokenizer::leading_tokens() const {
  return state_->post_processor.before;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids)
    if (!skip_special || !is_special(id)) state_->decoder.append(state_->spec.vocabulary.piece(id), bytes);
  if (strips_space() && bytes.starts_with(' ')) bytes.erase(0, 1);
  return is_valid_utf8(bytes) ? bytes : replace_invalid_utf8(bytes);
}

std::string Tokenizer::token_bytes(TokenId id) const {
  std::string bytes;
  state_->decoder.append(state_->spec.vocabulary.piece(id), bytes);
  return bytes;
}

bool Tokenizer::strips_space() const {
  return state_->decoder.strips_space();
}

std::string Tokenizer::token_piece(TokenId id) const {
  return std::string(state_->spec.vocabulary.piece(id));
}

std::optional<TokenId> Tokenizer::token_id(std::string_view piece) const {
  const auto added = state_->added_ids.find(piece);
  if (added != state_->added_ids.end()) return added->second;
  return state_->spec.vocabulary.find(piece);
}

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < state_->special.size() && state_->special[static_cast<size_t>(id)];
}

size_t Tokenizer::vocab_size() const {
  return state_->spec.vocabulary.size();
}

std::string Tokenizer::to_json() const {
  return write_tokenizer_json(state_->spec);
}

}  // namespace octavo
