#include "server/constrain/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "server/constrain/json_grammar.h"
#include "server/openai/fields.h"
#include "server/openai/json_text.h"

namespace octavo {
namespace {

using Symbol = ByteGrammar::Symbol;
using Sequence = ByteGrammar::Sequence;

constexpr size_t kMaxSize = 200'000;   // symbols and rules of a grammar
constexpr int64_t kMaxCount = 10'000;  // minLength, maxItems, ...
constexpr size_t kMaxEnum = 2'000;
constexpr int kMaxDepth = 256;  // schemas within schemas, along references too

constexpr std::array kAnnotations = {"title",     "description", "default",     "examples",   "example",
                                     "$schema",   "$id",         "$comment",    "deprecated", "readOnly",
                                     "writeOnly", "$defs",       "definitions", "strict"};
constexpr std::array kKeywords = {"type",  "properties", "required",  "additionalProperties",
                                  "items", "minItems",   "maxItems",  "enum",
                                  "const", "anyOf",      "oneOf",     "allOf",
                                  "$ref",  "minLength",  "maxLength", "format"};

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

class SchemaCompiler {
 public:
  // The values that follow `root`, into which its references point.
  ApiResult<Symbol> symbol_of_root(const Json& root) {
    root_ = &root;
    references_.clear();
    return symbol_of(root);
  }
  ApiResult<ByteGrammar> compile(const Json& root) {
    OCTAVO_API_ASSIGN(const Symbol symbol, symbol_of_root(root));
    return with_root({{symbol}});
  }
  // {"name": one of `names`, "arguments": what follows its schema}.
  ApiResult<ByteGrammar> compile_calls(const std::vector<std::string>& names, const Json& schemas) {
    std::vector<Sequence> calls;
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i].size() > kMaxSize) return too_large();
      OCTAVO_API_ASSIGN(const Symbol arguments, symbol_of_root(schemas[i]));
      ByteGrammar& g = json_.grammar;
      const Symbol name = g.rule_of({g.literal(json_string(names[i]))});
      Sequence call = {g.any_of("{"), json_.space};
      ByteGrammar::append(call, member("name", name));
      ByteGrammar::append(call, {g.any_of(","), json_.space});
      ByteGrammar::append(call, member("arguments", arguments));
      call.push_back(g.any_of("}"));
      calls.push_back(std::move(call));
    }
    return with_root(calls);
  }

 private:
  ByteGrammar with_root(const std::vector<Sequence>& alternatives) {
    json_.grammar.set_root(json_.grammar.rule_of(alternatives));
    return std::move(json_.grammar);
  }
  static tl::unexpected<ApiError> malformed(std::string message) {
    return refuse({.message = "the JSON schema is malformed: " + std::move(message), .code = "invalid_schema"});
  }
  static tl::unexpected<ApiError> unsupported(std::string_view keyword) {
    return refuse({.message = fmt::format("response_format json_schema is not supported for keyword {}", keyword),
                   .code = "unsupported_schema"});
  }

  static tl::unexpected<ApiError> too_large() {
    return refuse({.message = "the JSON schema is too large for constrained decoding", .code = "invalid_schema"});
  }

  ApiResult<Symbol> symbol_of(const Json& schema);
  ApiResult<Symbol> symbol_by_keyword(const Json& schema);
  ApiResult<Symbol> any_of(const Json& list);
  ApiResult<Symbol> enumeration(const Json& values);
  ApiResult<Symbol> reference(const Json& pointer);
  ApiResult<Symbol> of_type(const Json& schema, const Json& type);
  ApiResult<Symbol> string_of(const Json& schema);
  ApiResult<Symbol> array_of(const Json& schema);
  ApiResult<Symbol> object_of(const Json& schema);
  Sequence member(const std::string& name, Symbol value);
  // {minimum, maximum} of a pair of keywords; a maximum of -1 is none.
  ApiResult<std::pair<int64_t, int64_t>> bounds(const Json& schema, const char* low, const char* high);

  const Json* root_ = nullptr;
  JsonGrammar json_;
  int depth_ = 0;
  std::map<std::string, Symbol> references_;
};

ApiResult<Symbol> SchemaCompiler::symbol_of(const Json& schema) {
  if (json_.grammar.size() > kMaxSize) return too_large();
  if (depth_ >= kMaxDepth)
    return refuse({.message = fmt::format("the JSON schema nests more than {} schemas, references included", kMaxDepth),
                   .code = "invalid_schema"});
  ++depth_;
  ApiResult<Symbol> symbol = symbol_by_keyword(schema);
  --depth_;
  return symbol;
}

ApiResult<Symbol> SchemaCompiler::symbol_by_keyword(const Json& schema) {
  if (schema.is_boolean() && schema.get<bool>()) return json_.value;
  if (!schema.is_object()) return malformed("a schema must be an object");
  std::string combined;
  int others = 0;
  for (const auto& [keyword, unused] : schema.items()) {
    if (contains(kAnnotations, keyword)) continue;
    if (!contains(kKeywords, keyword)) return unsupported(keyword);
    if (keyword == "anyOf" || keyword == "oneOf" || keyword == "allOf" || keyword == "$ref")
      combined = keyword;
    else if (keyword != "type" || !schema.contains("enum"))
      ++others;
  }
  if (!combined.empty()) {
    if (others > 0 || schema.contains("enum")) return unsupported(combined + " beside other keywords");
    if (combined == "$ref") return reference(schema["$ref"]);
    if (!schema[combined].is_array() || schema[combined].empty()) return malformed(combined + " must be a list");
    if (combined == "allOf" && schema[combined].size() > 1) return unsupported("allOf of several schemas");
    return any_of(schema[combined]);
  }
  if (schema.contains("const")) return enumeration(Json::array({schema["const"]}));
  if (schema.contains("enum")) return enumeration(schema["enum"]);
  if (schema.contains("type") && schema["type"].is_array()) {
    std::vector<Sequence> alternatives;
    for (const Json& type : schema["type"]) {
      if (json_.grammar.size() > kMaxSize) return too_large();
      OCTAVO_API_ASSIGN(const Symbol symbol, of_type(schema, type));
      alternatives.push_back({symbol});
    }
    return json_.grammar.rule_of(alternatives);
  }
  if (schema.contains("type")) return of_type(schema, schema["type"]);
  if (schema.contains("properties") || schema.contains("additionalProperties") || schema.contains("required"))
    return object_of(schema);
  if (schema.contains("items") || schema.contains("minItems") || schema.contains("maxItems")) return array_of(schema);
  if (schema.contains("minLength") || schema.contains("maxLength") || schema.contains("format"))
    return string_of(schema);
  return json_.value;
}

ApiResult<Symbol> SchemaCompiler::of_type(const Json& schema, const Json& type) {
  const std::string name = type.is_string() ? type.get<std::string>() : "";
  if (name == "object") return object_of(schema);
  if (name == "array") return array_of(schema);
  if (name == "string") return string_of(schema);
  if (name == "integer") return json_.integer;
  if (name == "number") return json_.number;
  if (name == "boolean") return json_.boolean;
  if (name == "null") return json_.null;
  return malformed("type must be object, array, string, integer, number, boolean or null");
}

ApiResult<Symbol> SchemaCompiler::any_of(const Json& list) {
  std::vector<Sequence> alternatives;
  for (const Json& schema : list) {
    OCTAVO_API_ASSIGN(const Symbol symbol, symbol_of(schema));
    alternatives.push_back({symbol});
  }
  return json_.grammar.rule_of(alternatives);
}

ApiResult<Symbol> SchemaCompiler::enumeration(const Json& values) {
  if (!values.is_array() || values.empty()) return malformed("enum must be a list of values");
  if (values.size() > kMaxEnum) return malformed(fmt::format("enum may hold at most {} values", kMaxEnum));
  std::vector<Sequence> alternatives;
  size_t bytes = 0;
  for (const Json& value : values) {
    const std::string text = to_text(value);
    bytes += text.size();
    if (bytes > kMaxSize) return too_large();
    alternatives.push_back(json_.grammar.literal(text));
  }
  return json_.grammar.rule_of(alternatives);
}

ApiResult<Symbol> SchemaCompiler::reference(const Json& pointer) {
  if (!pointer.is_string() || !pointer.get_ref<const std::string&>().starts_with("#"))
    return malformed("$ref must point into the schema: \"#/$defs/NAME\"");
  const std::string path = pointer.get<std::string>().substr(1);
  if (const auto known = references_.find(path); known != references_.end()) return known->second;
  const Json* target = nullptr;
  try {
    target = &root_->at(Json::json_pointer(path));
  } catch (const Json::exception&) {
    return malformed(fmt::format("$ref points to nothing: #{}", path));
  }
  const Symbol rule = json_.grammar.add_rule();
  references_.emplace(path, rule);
  OCTAVO_API_ASSIGN(const Symbol symbol, symbol_of(*target));
  json_.grammar.add_alternative(rule, {symbol});
  return rule;
}

ApiResult<std::pair<int64_t, int64_t>> SchemaCompiler::bounds(const Json& schema, const char* low, const char* high) {
  Fields fields(schema);
  const int64_t least = fields.integer(low, 0, kMaxCount).value_or(0);
  const std::optional<int64_t> most = fields.integer(high, 0, kMaxCount);
  if (fields.error()) return malformed(fields.error()->message);
  if (most && *most < least) return malformed(fmt::format("{} is less than {}", high, low));
  return std::pair(least, most.value_or(-1));
}

ApiResult<Symbol> SchemaCompiler::string_of(const Json& schema) {
  ByteGrammar& g = json_.grammar;
  OCTAVO_API_ASSIGN(const auto range, bounds(schema, "minLength", "maxLength"));
  const Json format = schema.value("format", Json());
  Symbol formatted;
  if (format.is_string() && json_.format(format.get<std::string>(), formatted)) {
    if (schema.contains("minLength") || schema.contains("maxLength")) return unsupported("format beside a length");
    return formatted;
  }
  const auto [least, most] = range;
  if (most >= 0) return json_.quoted({g.repeat(json_.character, least, most)});
  if (least == 0) return json_.string;
  const Symbol more = g.add_rule();
  g.add_alternative(more, {});
  g.add_alternative(more, {json_.character, more});
  return json_.quoted({g.repeat(json_.character, least, least), more});
}

ApiResult<Symbol> SchemaCompiler::array_of(const Json& schema) {
  ByteGrammar& g = json_.grammar;
  OCTAVO_API_ASSIGN(const auto range, bounds(schema, "minItems", "maxItems"));
  const auto [least, most] = range;
  Symbol item = json_.value;
  if (schema.contains("items")) {
    OCTAVO_API_ASSIGN(item, symbol_of(schema["items"]));
  }
  item = g.inner(item);
  const Symbol open = g.any_of("["), close = g.any_of("]"), comma = g.any_of(",");
  // rest(i): what may follow i items. From the back; without a most, the last one repeats itself.
  const int64_t last = most >= 0 ? most : std::max<int64_t>(least, 1);
  Symbol rest = g.add_rule();
  g.add_alternative(rest, {close});
  if (most < 0) g.add_alternative(rest, {comma, json_.space, item, json_.space, rest});
  for (int64_t i = last; i-- > 0;) {
    const Symbol rule = g.add_rule();
    if (i >= least) g.add_alternative(rule, {close});
    if (i == 0)
      g.add_alternative(rule, {item, json_.space, rest});
    else
      g.add_alternative(rule, {comma, json_.space, item, json_.space, rest});
    rest = rule;
  }
  return g.rule_of({{open, json_.space, rest}});
}

Sequence SchemaCompiler::member(const std::string& name, Symbol value) {
  ByteGrammar& g = json_.grammar;
  Sequence sequence = g.literal(json_string(name));
  ByteGrammar::append(sequence, {json_.space, g.any_of(":"), json_.space, g.inner(value), json_.space});
  return sequence;
}

ApiResult<Symbol> SchemaCompiler::object_of(const Json& schema) {
  ByteGrammar& g = json_.grammar;
  // By reference: what is copied here would be copied again at every level below.
  static const Json kNoProperties = Json::object(), kNoNames = Json::array();
  const auto given = [&](const char* keyword, const Json& fallback) -> const Json& {
    const auto found = schema.find(keyword);
    return found == schema.end() ? fallback : *found;
  };
  const Json& properties = given("properties", kNoProperties);
  const Json& required = given("required", kNoNames);
  if (!properties.is_object()) return malformed("properties must be an object");
  if (!required.is_array()) return malformed("required must be a list");
  std::set<std::string_view> known, needed;
  for (const auto& [name, unused] : properties.items()) known.insert(name);
  for (const Json& name : required) {
    if (!name.is_string()) return malformed("required must hold names");
    const std::string_view text = name.get_ref<const std::string&>();
    if (!known.contains(text)) return unsupported("required for names without properties");
    needed.insert(text);
  }
  const Json open_by_default = properties.empty();
  const Json& extra = given("additionalProperties", open_by_default);
  // after[k]: what may follow when k members (0, or 1 for any) were written. From the last property to the first.
  const Symbol close = g.any_of("}"), comma = g.any_of(","), colon = g.any_of(":");
  std::array<Symbol, 2> after = {g.rule_of({{close}}), g.rule_of({{close}})};
  if (extra != Json(false)) {
    OCTAVO_API_ASSIGN(const Symbol value, symbol_of(extra));
    const Symbol one = g.rule_of({{json_.string, json_.space, colon, json_.space, g.inner(value), json_.space}});
    g.add_alternative(after[0], {one, after[1]});
    g.add_alternative(after[1], {comma, json_.space, one, after[1]});
  }
  std::vector<std::pair<std::string, const Json*>> names;
  for (const auto& [name, sub] : properties.items()) names.emplace_back(name, &sub);
  for (size_t i = names.size(); i-- > 0;) {
    const auto& [name, sub] = names[i];
    if (name.size() > kMaxSize) return too_large();
    OCTAVO_API_ASSIGN(const Symbol value, symbol_of(*sub));
    Sequence plain = member(name, value);
    Sequence with_comma = {comma, json_.space};
    ByteGrammar::append(with_comma, plain);
    plain.push_back(after[1]);
    with_comma.push_back(after[1]);
    std::array<Symbol, 2> before = {g.rule_of({plain}), g.rule_of({with_comma})};
    if (!needed.contains(name))
      for (size_t k = 0; k < 2; ++k) g.add_alternative(before[k], {after[k]});
    after = before;
  }
  return g.rule_of({{g.any_of("{"), json_.space, after[0]}});
}

}  // namespace

ApiResult<ByteGrammar> grammar_of_schema(const Json& schema) {
  return SchemaCompiler().compile(schema);
}

ApiResult<ByteGrammar> grammar_of_calls(const std::vector<std::string>& names, const Json& schemas) {
  return SchemaCompiler().compile_calls(names, schemas);
}

ByteGrammar grammar_of_json_object() {
  JsonGrammar json;
  json.grammar.set_root(json.object);
  return std::move(json.grammar);
}

ByteGrammar grammar_of_choices(const std::vector<std::string>& choices) {
  ByteGrammar grammar;
  std::vector<Sequence> alternatives;
  for (const std::string& choice : choices) alternatives.push_back(grammar.literal(choice));
  grammar.set_root(grammar.rule_of(alternatives));
  return grammar;
}

}  // namespace octavo
