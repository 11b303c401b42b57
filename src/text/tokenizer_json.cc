// tokenizer.json -> TokenizerSpec. The file is read as a stream of events: vocabulary and merges, nearly all of it, go
// straight into their tables; the small rest becomes a JSON value.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "text/spec_json.h"
#include "text/tokenizer_spec.h"

namespace octavo {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxBytes = size_t{256} << 20;
constexpr size_t kMaxMembers = 1000;            // of one small object: ordered objects are searched from the front
constexpr size_t kMaxValues = size_t{1} << 22;  // outside vocabulary and merges
// Ids below this are plausible in any file; above, a file must be as large as its ids.
constexpr size_t kSmallIdLimit = size_t{1} << 20;

// The receiver of nlohmann's parser events. A handler that returns false ends parsing; error() says why.
class Reader {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  Reader(size_t file_bytes, std::string_view where)
      : spec_(std::max(kSmallIdLimit, file_bytes)), file_bytes_(file_bytes), where_(where) {}

  bool null() { return value(nullptr); }
  bool boolean(bool b) { return value(b); }
  bool number_integer(number_integer_t n) { return mode_ == Mode::kVocabulary ? vocabulary_id(n) : value(n); }
  bool number_unsigned(number_unsigned_t n) {
    if (mode_ != Mode::kVocabulary) return value(n);
    constexpr auto kMax = static_cast<number_unsigned_t>(std::numeric_limits<int64_t>::max());
    return vocabulary_id(static_cast<int64_t>(std::min(n, kMax)));
  }
  bool number_float(number_float_t n, const string_t&) { return value(n); }
  bool string(string_t& text) {
    if (mode_ == Mode::kMerges) return merge_text(text);
    return value(std::move(text));
  }
  bool binary(binary_t&) { return false; }

  bool start_object(size_t) {
    if (mode_ != Mode::kRest) return wrong_value();
    if (in_model("vocab")) {
      mode_ = Mode::kVocabulary;
      has_vocabulary_ = true;
      spec_.vocabulary.reserve(file_bytes_ / 48);  // what hub files come to
      return true;
    }
    return open(Json::object());
  }
  bool end_object() { return close(); }
  bool start_array(size_t) {
    if (mode_ == Mode::kMerges && !in_pair_) {
      in_pair_ = true;
      pair_.clear();
      return true;
    }
    if (mode_ != Mode::kRest) return wrong_value();
    if (in_model("merges")) {
      mode_ = Mode::kMerges;
      has_merges_ = true;
      if (has_vocabulary_) spec_.bpe.reserve(spec_.vocabulary.count());
      return true;
    }
    return open(Json::array());
  }
  bool end_array() {
    if (!in_pair_) return close();
    in_pair_ = false;
    if (pair_.size() != 2) return wrong_merge(fmt::format("an array of {}", pair_.size()));
    return merge(pair_[0], pair_[1]);
  }
  bool key(string_t& name) {
    if (mode_ == Mode::kVocabulary) {
      piece_ = std::move(name);
      return true;
    }
    Json& object = *open_.back();
    if (object.contains(name)) return error({.what = "JSON object has the same key twice", .found = name});
    if (object.size() >= kMaxMembers) return error({.what = "JSON object has too many members", .found = name});
    key_ = std::move(name);
    // A second "model" or "vocab" is caught above only if the first left a trace.
    if (in_model("vocab") || in_model("merges")) object[key_] = true;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const Json::exception& e) {
    return error({.what = "not valid JSON", .where = fmt::format("{}, byte {}", where_, position), .found = e.what()});
  }

  Result<TokenizerSpec> finish();
  Error take_error() { return error_.value_or(Error{.what = "not valid JSON", .where = std::string(where_)}); }

 private:
  enum class Mode { kRest, kVocabulary, kMerges };

  bool error(Error e) {
    if (e.where.empty()) e.where = where_;
    if (!error_) error_ = std::move(e);
    return false;
  }
  bool accept(Result<void> result) {
    if (result) return true;
    Error e = std::move(result).error();
    e.where = e.where.empty() ? std::string(where_) : fmt::format("{}, {}", where_, e.where);
    return error(std::move(e));
  }
  // The next value is model.NAME.
  bool in_model(std::string_view name) const { return open_.size() == 2 && model_open_ && key_ == name; }

  Json* place(Json value) {
    if (++num_values_ > kMaxValues) {
      error({.what = "JSON has too many values"});
      return nullptr;
    }
    if (open_.empty()) return &(root_ = std::move(value));
    Json& parent = *open_.back();
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    return &(parent[key_] = std::move(value));
  }
  bool value(Json value) {
    if (mode_ != Mode::kRest) return wrong_value();
    return place(std::move(value)) != nullptr;
  }
  bool open(Json value) {
    if (open_.size() >= kMaxDepth) return error({.what = "JSON is nested too deeply"});
    if (open_.size() == 1 && key_ == "model" && open_[0]->is_object()) model_open_ = true;
    Json* placed = place(std::move(value));
    if (placed == nullptr) return false;
    open_.push_back(placed);
    return true;
  }
  bool close() {
    if (mode_ != Mode::kRest) {
      mode_ = Mode::kRest;
      return true;
    }
    open_.pop_back();
    if (open_.size() == 1) model_open_ = false;
    return true;
  }

  bool wrong_value() {
    if (mode_ == Mode::kMerges) return wrong_merge("another type");
    return error({.what = "vocabulary entry is not a number",
                  .where = fmt::format("{}, token \"{}\"", where_, piece_),
                  .expected = "an integer id"});
  }
  bool vocabulary_id(int64_t id) { return accept(spec_.vocabulary.add(id, piece_)); }

  bool wrong_merge(std::string found) {
    return error({.what = "merge is malformed",
                  .where = fmt::format("{}, merge {}", where_, num_merges_),
                  .found = std::move(found),
                  .expected = R"("a b" or ["a", "b"])"});
  }
  bool merge_text(string_t& text) {
    if (in_pair_) {
      pair_.push_back(std::move(text));
      return true;
    }
    if (text.starts_with("#version")) return true;
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) return wrong_merge(text);
    return merge(std::string_view(text).substr(0, space), std::string_view(text).substr(space + 1));
  }
  bool merge(std::string_view left, std::string_view right) {
    ++num_merges_;
    if (has_vocabulary_) return accept(spec_.bpe.add_merge(spec_.vocabulary, left, right));
    early_merges_.emplace_back(left, right);
    return true;
  }

  Result<BpeOptions> check_model() const;
  Result<void> take_added_tokens();

  TokenizerSpec spec_;
  size_t file_bytes_;
  std::string_view where_;
  std::optional<Error> error_;

  Json root_;
  std::vector<Json*> open_;
  std::string key_, piece_;
  size_t num_values_ = 0, num_merges_ = 0;
  bool model_open_ = false;
  Mode mode_ = Mode::kRest;
  bool has_vocabulary_ = false, has_merges_ = false;
  bool in_pair_ = false;
  std::vector<std::string> pair_;
  std::vector<std::pair<std::string, std::string>> early_merges_;  // that came before the vocabulary
};

// Model settings that would change the result are refused, not ignored.
Result<BpeOptions> Reader::check_model() const {
  if (!root_.is_object() || !root_.contains("model") || !root_["model"].is_object())
    return fail({.what = "no \"model\" in the tokenizer", .expected = "the object that a tokenizer.json has"});
  const Json& model = root_["model"];
  if (model.contains("type") && model["type"] != "BPE") {
    OCTAVO_ASSIGN(const std::string type, type_of(model, "model"));
    return unsupported_part("model", type, "BPE");
  }
  if (!has_vocabulary_ || !has_merges_)
    return fail({.what = "tokenizer has no BPE model",
                 .where = "model",
                 .found = has_vocabulary_ ? "no \"merges\" array" : "no \"vocab\" object",
                 .expected = "\"vocab\" (token -> id) and \"merges\""});
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (model.contains(key) && !model[key].is_null() && model[key] != "")
      return unsupported_part("model", key, "byte-level BPE without it");
  if (model.contains("dropout") && !model["dropout"].is_null() && model["dropout"] != 0)
    return unsupported_part("model", "dropout", "BPE without dropout");
  BpeOptions options;
  OCTAVO_ASSIGN(options.byte_fallback, bool_member(model, "byte_fallback", false, "model"));
  OCTAVO_ASSIGN(options.ignore_merges, bool_member(model, "ignore_merges", false, "model"));
  OCTAVO_ASSIGN(options.fuse_unk, bool_member(model, "fuse_unk", false, "model"));
  if (model.contains("unk_token") && !model["unk_token"].is_null()) {
    OCTAVO_ASSIGN(const std::string unk, text_member(model, "unk_token", "model"));
    options.unk = spec_.vocabulary.find(unk);
    if (!options.unk)
      return fail(
          {.what = "unk_token is not in the vocabulary", .where = "model", .found = fmt::format("\"{}\"", unk)});
  }
  return options;
}

Result<void> Reader::take_added_tokens() {
  const auto tokens = root_.find("added_tokens");
  if (tokens == root_.end() || tokens->is_null()) return {};
  OCTAVO_ASSIGN(const Json* list, array_member(root_, "added_tokens", "tokenizer"));
  for (const Json& object : *list) {
    OCTAVO_ASSIGN(AddedToken token, added_token_from(object));
    const auto id = object.find("id");
    if (id == object.end() || !id->is_number_integer())
      return fail({.what = "added token has no integer id", .where = fmt::format("added token \"{}\"", token.content)});
    const auto number = id->is_number_unsigned()
                            ? static_cast<int64_t>(std::min<uint64_t>(id->get<uint64_t>(), INT64_MAX))
                            : id->get<int64_t>();
    OCTAVO_TRY(add_token(spec_, number, std::move(token)));
  }
  return {};
}

Result<TokenizerSpec> Reader::finish() {
  OCTAVO_ASSIGN(const BpeOptions options, check_model());
  for (const auto& [left, right] : early_merges_) OCTAVO_TRY(spec_.bpe.add_merge(spec_.vocabulary, left, right));
  spec_.bpe.finish(spec_.vocabulary, options);
  OCTAVO_TRY(take_added_tokens());
  for (auto [key, part] : {std::pair{"normalizer", &spec_.normalizer}, std::pair{"pre_tokenizer", &spec_.pre_tokenizer},
                           std::pair{"post_processor", &spec_.post_processor}, std::pair{"decoder", &spec_.decoder}})
    if (root_.contains(key)) *part = std::move(root_[key]);
  return std::move(spec_);
}

}  // namespace

Result<AddedToken> added_token_from(const Json& object) {
  constexpr std::string_view kPart = "added token";
  AddedToken token;
  OCTAVO_ASSIGN(token.content, text_member(object, "content", kPart));
  OCTAVO_ASSIGN(token.single_word, bool_member(object, "single_word", false, kPart));
  OCTAVO_ASSIGN(token.lstrip, bool_member(object, "lstrip", false, kPart));
  OCTAVO_ASSIGN(token.rstrip, bool_member(object, "rstrip", false, kPart));
  OCTAVO_ASSIGN(token.special, bool_member(object, "special", false, kPart));
  OCTAVO_ASSIGN(token.normalized, bool_member(object, "normalized", !token.special, kPart));
  if (token.content.size() > AddedTokenMatcher::kMaxContent)
    return fail({.what = "added token is too long",
                 .where = std::string(kPart),
                 .found = fmt::format("{} bytes", token.content.size()),
                 .expected = fmt::format("at most {} bytes", AddedTokenMatcher::kMaxContent)});
  return token;
}

Result<TokenizerSpec> parse_tokenizer_json(std::string_view text, std::string_view where) {
  if (text.size() > kMaxBytes)
    return fail({.what = "tokenizer file is too large",
                 .where = std::string(where),
                 .found = fmt::format("{} bytes", text.size()),
                 .expected = fmt::format("at most {} bytes", kMaxBytes)});
  Reader reader(text.size(), where);
  if (!Json::sax_parse(text, &reader)) return fail(reader.take_error());
  auto spec = reader.finish();
  if (!spec) {
    Error error = std::move(spec).error();
    error.where = error.where.empty() ? std::string(where) : fmt::format("{}, {}", where, error.where);
    return fail(std::move(error));
  }
  return spec;
}

}  // namespace octavo
