// GGUF metadata -> TokenizerSpec. A GGUF names its splitting rule instead of spelling it out; the table below holds
// the rules under those names. SentencePiece models ("llama") have scores instead of merges.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/gguf.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"

namespace octavo {
namespace {

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepSeekCjk = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
constexpr std::string_view kDeepSeekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kMetaspace = "\u2581";
constexpr size_t kMaxMergedBytes = 1024;  // a longer piece is no merge of a text's characters

struct PreTokenizerRow {
  std::string_view name;
  bool digits = false;                // every number character by itself, first
  std::string_view patterns[4] = {};  // Splits, one after the other
  bool gpt2 = false;                  // GPT-2's rule at the end
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file says nothing
};

constexpr PreTokenizerRow kRows[] = {
    {.name = "gpt-2", .gpt2 = true},
    {.name = "gpt2", .gpt2 = true},
    {.name = "default", .patterns = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
    {.name = "smollm", .digits = true, .gpt2 = true},
    {.name = "starcoder", .digits = true, .gpt2 = true},
    {.name = "refact", .digits = true, .gpt2 = true},
    {.name = "llama-bpe", .patterns = {kLlama3}, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .patterns = {kLlama3}, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .patterns = {kLlama3}, .ignore_merges = true, .add_bos = true},
    {.name = "lfm2", .patterns = {kLlama3}, .ignore_merges = true, .add_bos = true},
    {.name = "qwen2", .patterns = {kQwen2}, .nfc = true},
    {.name = "deepseek-r1-qwen", .patterns = {kQwen2}},
    {.name = "qwen35", .patterns = {kQwen35}, .nfc = true},
    {.name = "deepseek-v3", .patterns = {R"(\p{N}{1,3})", kDeepSeekCjk, kDeepSeekWords}},
    {.name = "gpt-4o", .patterns = {kO200k}, .ignore_merges = true},
    {.name = "llama4", .patterns = {kO200k}, .ignore_merges = true, .add_bos = true},
};

Json pre_tokenizer_json(const PreTokenizerRow& row) {
  Json steps = Json::array();
  if (row.digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  for (const std::string_view pattern : row.patterns)
    if (!pattern.empty())
      steps.push_back({{"type", "Split"},
                       {"pattern", {{"Regex", std::string(pattern)}}},
                       {"behavior", "Isolated"},
                       {"invert", false}});
  steps.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", row.gpt2}});
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

class Builder {
 public:
  Builder(const Gguf& gguf, std::string where) : gguf_(gguf), where_(std::move(where)) {}

  Result<TokenizerSpec> run() {
    if (gguf_.text("tokenizer.ggml.model").value_or("") == "llama") return run_sentence_pieces();
    OCTAVO_ASSIGN(const PreTokenizerRow* row, find_row());
    const auto* tokens = gguf_.texts("tokenizer.ggml.tokens");
    const auto* merges = gguf_.texts("tokenizer.ggml.merges");
    if (tokens == nullptr || tokens->empty()) return missing("tokenizer.ggml.tokens");
    if (merges == nullptr) return missing("tokenizer.ggml.merges");
    TokenizerSpec spec(std::min<size_t>(tokens->size(), INT32_MAX));
    OCTAVO_TRY(add_tokens(spec, *tokens));
    spec.bpe.reserve(merges->size());
    for (const std::string& merge : *merges) OCTAVO_TRY(add_merge(spec, merge));
    spec.bpe.finish(spec.vocabulary, {.ignore_merges = row->ignore_merges});
    if (row->nfc) spec.normalizer = {{"type", "NFC"}};
    spec.pre_tokenizer = pre_tokenizer_json(*row);
    spec.decoder = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
    OCTAVO_TRY(add_post_processor(spec, *row));
    return spec;
  }

 private:
  Result<TokenizerSpec> run_sentence_pieces() {
    const auto* tokens = gguf_.texts("tokenizer.ggml.tokens");
    const auto* scores = gguf_.numbers("tokenizer.ggml.scores");
    if (tokens == nullptr || tokens->empty()) return missing("tokenizer.ggml.tokens");
    if (scores == nullptr || scores->size() != tokens->size()) return missing("tokenizer.ggml.scores for every token");
    if (std::any_of(scores->begin(), scores->end(), [](double score) { return !std::isfinite(score); }))
      return missing("finite tokenizer.ggml.scores");
    TokenizerSpec spec(std::min<size_t>(tokens->size(), INT32_MAX));
    OCTAVO_TRY(add_tokens(spec, *tokens));
    add_scored_merges(spec, *scores);
    BpeOptions options{.fuse_unk = true, .byte_fallback = true};
    const auto unk = gguf_.integer("tokenizer.ggml.unknown_token_id");
    if (unk && *unk >= 0 && *unk < INT32_MAX && spec.vocabulary.contains(static_cast<TokenId>(*unk)))
      options.unk = static_cast<TokenId>(*unk);
    spec.bpe.finish(spec.vocabulary, options);
    const bool prefix = gguf_.integer("tokenizer.ggml.add_space_prefix").value_or(1) != 0;
    const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kMetaspace}};
    Json steps = Json::array();
    if (prefix) steps.push_back({{"type", "Prepend"}, {"prepend", kMetaspace}});
    steps.push_back(replace);
    spec.normalizer = {{"type", "Sequence"}, {"normalizers", steps}};
    Json decoders = Json::array();
    decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kMetaspace}}}, {"content", " "}});
    decoders.push_back({{"type", "ByteFallback"}});
    decoders.push_back({{"type", "Fuse"}});
    if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    spec.decoder = {{"type", "Sequence"}, {"decoders", decoders}};
    OCTAVO_TRY(add_post_processor(spec, {.name = "llama", .add_bos = true}));
    return spec;
  }

  // Two neighbours merge where their text is a token; the token of the highest score first, the leftmost of equals.
  void add_scored_merges(TokenizerSpec& spec, const std::vector<double>& scores) const {
    std::vector<TokenId> order;
    for (size_t i = 0; i < spec.vocabulary.size(); ++i) {
      const auto id = static_cast<TokenId>(i);
      if (spec.vocabulary.contains(id) && spec.vocabulary.find(spec.vocabulary.piece(id)) == id) order.push_back(id);
    }
    const auto score = [&](TokenId id) { return scores[static_cast<size_t>(id)]; };
    std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return score(a) > score(b); });
    uint32_t rank = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0 && score(order[i]) < score(order[i - 1])) ++rank;
      const std::string_view piece = spec.vocabulary.piece(order[i]);
      if (piece.size() > kMaxMergedBytes) continue;
      for (size_t at = 1; at < piece.size(); ++at) {
        if ((static_cast<uint8_t>(piece[at]) & 0xC0) == 0x80) continue;  // inside a character
        const auto left = spec.vocabulary.find(piece.substr(0, at)), right = spec.vocabulary.find(piece.substr(at));
        if (left && right) spec.bpe.add_ranked_merge(*left, *right, order[i], rank);
      }
    }
  }

  tl::unexpected<Error> missing(std::string_view key) const {
    return fail({.what = "GGUF has no usable tokenizer",
                 .where = where_,
                 .found = fmt::format("no {}", key),
                 .expected = "the tokenizer.ggml.* keys of a byte-level BPE model"});
  }

  Result<const PreTokenizerRow*> find_row() const {
    const auto model = gguf_.text("tokenizer.ggml.model");
    if (!model) return missing("tokenizer.ggml.model");
    if (*model != "gpt2")
      return fail({.what = "tokenizer of this GGUF is not supported",
                   .where = fmt::format("{}, tokenizer.ggml.model", where_),
                   .found = *model,
                   .expected = "gpt2 (byte-level BPE) or llama (SentencePiece)"});
    const auto name = gguf_.text("tokenizer.ggml.pre");
    for (const PreTokenizerRow& row : kRows)
      if (name && row.name == *name) return &row;
    return fail({.what = name ? "splitting rule of this GGUF's tokenizer is not known"
                              : "GGUF does not say how its tokenizer splits text",
                 .where = fmt::format("{}, tokenizer.ggml.pre", where_),
                 .found = name.value_or("no such key"),
                 .expected = "one of " + known_gguf_pre_tokenizers(),
                 .remedy = "use the model's tokenizer.json, or a GGUF made by a newer converter"});
  }

  // token_type: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
  Result<void> add_tokens(TokenizerSpec& spec, const std::vector<std::string>& tokens) const {
    const auto* types = gguf_.integers("tokenizer.ggml.token_type");
    if (types != nullptr && types->size() != tokens.size())
      return fail({.what = "GGUF tokenizer has arrays of different length",
                   .where = fmt::format("{}, tokenizer.ggml.token_type", where_),
                   .found = fmt::format("{} types", types->size()),
                   .expected = fmt::format("{} (the number of tokens)", tokens.size())});
    spec.vocabulary.reserve(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int64_t type = types == nullptr ? 1 : (*types)[i];
      const auto id = static_cast<int64_t>(i);
      if (type == 5) continue;  // padding rows: never produced, never shown
      if (!is_valid_utf8(tokens[i]))
        return fail({.what = "token is not valid UTF-8",
                     .where = fmt::format("{}, tokenizer.ggml.tokens, token {}", where_, i)});
      OCTAVO_TRY(in_file(spec.vocabulary.add(id, tokens[i])));
      if (type != 2 && type != 3 && type != 4) continue;
      if (tokens[i].size() > AddedTokenMatcher::kMaxContent)
        return fail({.what = "added token is too long", .where = fmt::format("{}, token {}", where_, i)});
      OCTAVO_TRY(in_file(add_token(spec, id, {.content = tokens[i], .normalized = false, .special = type != 4})));
    }
    return {};
  }

  Result<void> add_merge(TokenizerSpec& spec, const std::string& merge) const {
    // A part may itself begin with a space in no vocabulary of this kind; the separator is the only one.
    const size_t space = merge.find(' ');
    if (space == std::string::npos || merge.find(' ', space + 1) != std::string::npos)
      return fail({.what = "merge is malformed",
                   .where = fmt::format("{}, tokenizer.ggml.merges, merge {}", where_, spec.bpe.merges().size()),
                   .found = merge,
                   .expected = "\"a b\""});
    const std::string_view text = merge;
    return in_file(spec.bpe.add_merge(spec.vocabulary, text.substr(0, space), text.substr(space + 1)));
  }

  Result<void> add_post_processor(TokenizerSpec& spec, const PreTokenizerRow& row) const {
    std::vector<AddedToken> before, after;
    if (gguf_.integer("tokenizer.ggml.add_bos_token").value_or(row.add_bos ? 1 : 0) != 0)
      OCTAVO_TRY(put_token(spec, "bos", before));
    if (gguf_.integer("tokenizer.ggml.add_eos_token").value_or(0) != 0) OCTAVO_TRY(put_token(spec, "eos", after));
    if (!before.empty() || !after.empty()) spec.post_processor = template_post_processor(before, after);
    return {};
  }

  Result<void> put_token(const TokenizerSpec& spec, std::string_view name, std::vector<AddedToken>& list) const {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    const auto id = gguf_.integer(key);
    if (!id) return missing(key);
    if (*id < 0 || static_cast<uint64_t>(*id) >= spec.vocabulary.size() ||
        !spec.vocabulary.contains(static_cast<TokenId>(*id)))
      return fail({.what = "token id is not in the vocabulary",
                   .where = fmt::format("{}, {}", where_, key),
                   .found = fmt::format("{}", *id),
                   .expected = fmt::format("below {}", spec.vocabulary.size())});
    const auto token = static_cast<TokenId>(*id);
    list.push_back({.id = token, .content = std::string(spec.vocabulary.piece(token))});
    return {};
  }

  Result<void> in_file(Result<void> result) const {
    if (result) return {};
    Error error = std::move(result).error();
    error.where = error.where.empty() ? where_ : fmt::format("{}, {}", where_, error.where);
    return fail(std::move(error));
  }

  const Gguf& gguf_;
  std::string where_;
};

}  // namespace

std::string known_gguf_pre_tokenizers() {
  std::string names;
  for (const PreTokenizerRow& row : kRows) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

Result<TokenizerSpec> read_gguf_tokenizer(const std::filesystem::path& file) {
  OCTAVO_ASSIGN(const Gguf gguf, Gguf::open(file));
  return Builder(gguf, file.string()).run();
}

}  // namespace octavo
