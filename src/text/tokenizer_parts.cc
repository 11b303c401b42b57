// Post-processors, and what tokenizer_config.json adds to a tokenizer.json.
#include <fmt/format.h>

#include <charconv>
#include <unordered_set>

#include "text/spec_json.h"
#include "text/tokenizer_spec.h"

namespace octavo {
namespace {

constexpr std::string_view kPart = "post_processor";

Result<std::vector<TokenId>> special_token_ids(const Json& processor, const Json& item) {
  OCTAVO_ASSIGN(const std::string name, text_member(item, "id", kPart));
  const auto table = processor.find("special_tokens");
  const Json* entry = nullptr;
  if (table != processor.end() && table->is_object() && table->contains(name)) entry = &(*table)[name];
  if (entry == nullptr)
    return fail({.what = "template names a token that its special_tokens lack",
                 .where = std::string(kPart),
                 .found = fmt::format("\"{}\"", name)});
  OCTAVO_ASSIGN(const Json* list, array_member(*entry, "ids", kPart));
  std::vector<TokenId> ids;
  for (const Json& id : *list) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      return fail({.what = "template has an invalid token id", .where = std::string(kPart), .found = id.dump()});
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

// {"type": "TemplateProcessing", "single": [{"SpecialToken": ...}, {"Sequence": {"id": "A"}}, ...], ...}
Result<PostProcessor> template_from(const Json& json) {
  OCTAVO_ASSIGN(const Json* items, array_member(json, "single", kPart));
  PostProcessor result;
  bool seen_text = false;
  for (const Json& item : *items) {
    if (item.is_object() && item.contains("Sequence")) {
      if (seen_text) return unsupported_part(kPart, "a template that repeats the text", "one Sequence A");
      seen_text = true;
    } else if (item.is_object() && item.contains("SpecialToken")) {
      OCTAVO_ASSIGN(const std::vector<TokenId> ids, special_token_ids(json, item["SpecialToken"]));
      auto& side = seen_text ? result.after : result.before;
      side.insert(side.end(), ids.begin(), ids.end());
    } else {
      return fail({.what = "template item is neither SpecialToken nor Sequence", .where = std::string(kPart)});
    }
  }
  if (!seen_text) return unsupported_part(kPart, "a template without the text", "one Sequence A");
  return result;
}

}  // namespace

Result<PostProcessor> PostProcessor::from_json(const Json& json) {
  if (json.is_null()) return PostProcessor{};
  OCTAVO_ASSIGN(const std::string type, type_of(json, kPart));
  if (type == "ByteLevel") return PostProcessor{};  // moves offsets only
  if (type == "TemplateProcessing") return template_from(json);
  if (type != "Sequence") return unsupported_part(kPart, type, "TemplateProcessing, ByteLevel, Sequence or null");
  OCTAVO_ASSIGN(const Json* parts, array_member(json, "processors", kPart));
  PostProcessor result;
  for (const Json& part : *parts) {
    OCTAVO_ASSIGN(const PostProcessor inner, from_json(part));
    result.before.insert(result.before.begin(), inner.before.begin(), inner.before.end());
    result.after.insert(result.after.end(), inner.after.begin(), inner.after.end());
  }
  return result;
}

Result<void> add_token(TokenizerSpec& spec, int64_t id, AddedToken token, bool is_new) {
  const auto in_vocabulary = spec.vocabulary.find(token.content);
  if (in_vocabulary && *in_vocabulary != id)
    return fail({.what = "added token and vocabulary disagree about an id",
                 .where = fmt::format("added token \"{}\"", token.content),
                 .found = fmt::format("{} and {}", id, *in_vocabulary)});
  OCTAVO_TRY(spec.vocabulary.name(id, token.content));
  token.id = static_cast<TokenId>(id);
  if (is_new) spec.added.push_back(std::move(token));
  return {};
}

Json template_post_processor(const std::vector<AddedToken>& before, const std::vector<AddedToken>& after) {
  Json single = Json::array(), pair = Json::array(), table = Json::object();
  const auto special = [&](const AddedToken& token, int type_id) {
    table[token.content] = {{"id", token.content}, {"ids", {token.id}}, {"tokens", {token.content}}};
    return Json{{"SpecialToken", {{"id", token.content}, {"type_id", type_id}}}};
  };
  for (const int part : {0, 1}) {
    const Json text = {{"Sequence", {{"id", part == 0 ? "A" : "B"}, {"type_id", part}}}};
    const auto put = [&](const Json& item) {
      if (part == 0) single.push_back(item);
      pair.push_back(item);
    };
    for (const AddedToken& token : before) put(special(token, part));
    put(text);
    for (const AddedToken& token : after) put(special(token, part));
  }
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", table}};
}

namespace {

// added_tokens_decoder: {"151643": {"content": ..., ...}, ...}
Result<void> add_config_tokens(TokenizerSpec& spec, const Json& config) {
  const auto table = config.find("added_tokens_decoder");
  if (table == config.end() || !table->is_object()) return {};
  std::unordered_set<TokenId> known;
  for (const AddedToken& token : spec.added) known.insert(token.id);
  for (const auto& [key, object] : table->items()) {
    int64_t id = -1;
    const auto [end, status] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (status != std::errc() || end != key.data() + key.size())
      return fail({.what = "added_tokens_decoder has a key that is not an id", .found = key});
    OCTAVO_ASSIGN(AddedToken token, added_token_from(object));
    OCTAVO_TRY(add_token(spec, id, std::move(token), !known.contains(static_cast<TokenId>(id))));
  }
  return {};
}

// The token that `key` ("bos_token") names, as a string or as an object with "content".
Result<AddedToken> named_token(const TokenizerSpec& spec, const Json& config, const char* key) {
  const auto value = config.find(key);
  std::string content;
  if (value != config.end() && value->is_string()) content = value->get<std::string>();
  if (value != config.end() && value->is_object()) {
    OCTAVO_ASSIGN(content, text_member(*value, "content", key));
  }
  AddedToken token{.id = -1, .content = content};
  for (const AddedToken& added : spec.added)
    if (added.content == content) token.id = added.id;
  if (token.id < 0) token.id = spec.vocabulary.find(content).value_or(-1);
  if (token.id < 0)
    return fail(
        {.what = fmt::format("add_{} is true but the token is unknown", key), .found = fmt::format("\"{}\"", content)});
  return token;
}

}  // namespace

Result<void> apply_tokenizer_config(TokenizerSpec& spec, std::string_view text, std::string_view where) {
  OCTAVO_ASSIGN(const Json config, parse_json(text, where));
  if (!config.is_object()) return fail({.what = "tokenizer_config.json is not an object", .where = std::string(where)});
  const auto apply = [&]() -> Result<void> {
    OCTAVO_TRY(add_config_tokens(spec, config));
    OCTAVO_ASSIGN(const bool add_bos, bool_member(config, "add_bos_token", false, "tokenizer_config.json"));
    OCTAVO_ASSIGN(const bool add_eos, bool_member(config, "add_eos_token", false, "tokenizer_config.json"));
    OCTAVO_ASSIGN(const PostProcessor present, PostProcessor::from_json(spec.post_processor));
    if ((!add_bos && !add_eos) || !present.before.empty() || !present.after.empty()) return {};
    std::vector<AddedToken> before, after;
    if (add_bos) {
      OCTAVO_ASSIGN(AddedToken token, named_token(spec, config, "bos_token"));
      before.push_back(std::move(token));
    }
    if (add_eos) {
      OCTAVO_ASSIGN(AddedToken token, named_token(spec, config, "eos_token"));
      after.push_back(std::move(token));
    }
    spec.post_processor = template_post_processor(before, after);
    return {};
  };
  auto result = apply();
  if (result) return {};
  Error error = std::move(result).error();
  error.where = error.where.empty() ? std::string(where) : fmt::format("{}, {}", where, error.where);
  return fail(std::move(error));
}

}  // namespace octavo
