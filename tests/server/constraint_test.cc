// Constrained decoding: what a grammar lets through is JSON that follows the schema, and everything simple is let
// through.
#include "server/constrain/constraint.h"

#include <fmt/format.h>

#include <random>

#include "fake_engine.h"

namespace octavo {
namespace {

ByteAutomaton automaton_of(const std::string& schema) {
  ApiResult<ByteGrammar> grammar = grammar_of_schema(Json::parse(schema));
  EXPECT_TRUE(grammar) << schema << (grammar ? "" : grammar.error().message);
  return ByteAutomaton(std::move(*grammar));
}

bool matches(ByteAutomaton& automaton, std::string_view text) {
  ByteAutomaton::State state = automaton.start();
  for (const char c : text) state = automaton.next(state, static_cast<uint8_t>(c));
  return state != ByteAutomaton::kDead && automaton.accepts(state);
}

bool matches(const std::string& schema, std::string_view text) {
  ByteAutomaton automaton = automaton_of(schema);
  return matches(automaton, text);
}

TEST(Schema, ScalarTypes) {
  for (const std::string text : {"0", "-1", "42"}) EXPECT_TRUE(matches(R"({"type":"integer"})", text)) << text;
  for (const std::string text : {"", "01", "1.5", "-", "+1", "1e3", " 1"})
    EXPECT_FALSE(matches(R"({"type":"integer"})", text)) << text;
  for (const std::string text : {"0.5", "-1e-3", "12"}) EXPECT_TRUE(matches(R"({"type":"number"})", text)) << text;
  for (const std::string text : {"1.", ".5", "1e999", "NaN"})
    EXPECT_FALSE(matches(R"({"type":"number"})", text)) << text;
  EXPECT_TRUE(matches(R"({"type":["boolean","null"]})", "null"));
  EXPECT_TRUE(matches(R"({"type":["boolean","null"]})", "true"));
  EXPECT_FALSE(matches(R"({"type":["boolean","null"]})", "0"));
}

TEST(Schema, Strings) {
  const std::string schema = R"({"type":"string"})";
  for (const std::string text : {R"("")", R"("a\n\u00e9\"\\")", "\"\xC3\xA9\xF0\x9F\x8C\xB6\"", R"("\ud7ff")"})
    EXPECT_TRUE(matches(schema, text)) << text;
  for (const std::string text :
       {"\"", "\"\n\"", "\"\xC3\"", "\"\xED\xA0\x80\"", "\"\xFF\"", R"("\x")", R"("\ud800")", "\"\xC0\x80\""})
    EXPECT_FALSE(matches(schema, text)) << text;
  EXPECT_TRUE(matches(R"({"type":"string","minLength":2,"maxLength":3})", "\"a\xC3\xA9\""));
  EXPECT_FALSE(matches(R"({"type":"string","minLength":2,"maxLength":3})", R"("a")"));
  EXPECT_FALSE(matches(R"({"type":"string","minLength":2,"maxLength":3})", R"("abcd")"));
  EXPECT_TRUE(matches(R"({"type":"string","minLength":2})", R"("abcd")"));
  EXPECT_TRUE(matches(R"({"type":"string","format":"date"})", R"("2024-12-28")"));
  EXPECT_FALSE(matches(R"({"type":"string","format":"date"})", R"("2024-13-01")"));
  EXPECT_TRUE(matches(R"({"type":"string","format":"date-time"})", R"("2024-12-28T23:59:59Z")"));
  EXPECT_TRUE(matches(R"({"type":"string","format":"uuid"})", R"("123e4567-e89b-12d3-a456-426614174000")"));
}

TEST(Schema, Objects) {
  const std::string schema =
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":"null"}},
    "required":["a","c"],"additionalProperties":false,"title":"T"})";
  EXPECT_TRUE(matches(schema, R"({"a": 1, "b": "x", "c": null})"));
  EXPECT_TRUE(matches(schema, "{\n  \"a\": 1,\n  \"c\": null\n}"));
  EXPECT_TRUE(matches(schema, R"({"a":1,"c":null})"));
  for (const std::string text : {R"({"a":1})", R"({"c":null,"a":1})", R"({"a":1,"c":null,"d":1})",
                                 R"({"a":1,"c":null,})", R"({,"a":1,"c":null})", "{}"})
    EXPECT_FALSE(matches(schema, text)) << text;
  const std::string optional =
      R"({"properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})";
  for (const std::string text :
       {"{}", R"({"b":1})", R"({"a":1,"b":1})", R"({"x":true})", R"({"b":1,"x":true,"y":false})"})
    EXPECT_TRUE(matches(optional, text)) << text;
  EXPECT_FALSE(matches(optional, R"({"x":1})"));
  EXPECT_TRUE(matches(R"({"type":"object"})", R"({"any":[1,{"x":null}]})"));
}

TEST(Schema, ArraysEnumsUnionsReferences) {
  const std::string bounded = R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})";
  EXPECT_TRUE(matches(bounded, "[1]"));
  EXPECT_TRUE(matches(bounded, "[1, 2,3]"));
  for (const std::string text : {"[]", "[1,2,3,4]", "[1,]", "[\"a\"]"}) EXPECT_FALSE(matches(bounded, text)) << text;
  EXPECT_TRUE(matches(R"({"type":"array"})", R"([])"));
  EXPECT_TRUE(matches(R"({"type":"array","minItems":2})", R"([1,"a",{}])"));
  EXPECT_FALSE(matches(R"({"type":"array","minItems":2})", R"([1])"));
  EXPECT_TRUE(matches(R"({"enum":["red",5,null]})", "5"));
  EXPECT_FALSE(matches(R"({"enum":["red",5,null]})", "\"blue\""));
  EXPECT_TRUE(matches(R"({"const":{"x":1}})", R"({"x":1})"));
  EXPECT_TRUE(matches(R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", "\"1\""));
  const std::string tree =
      R"({"$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},
    "required":["v","next"],"additionalProperties":false}},"$ref":"#/$defs/node"})";
  EXPECT_TRUE(matches(tree, R"({"v":1,"next":{"v":2,"next":null}})"));
  EXPECT_FALSE(matches(tree, R"({"v":1,"next":{"v":2}})"));
}

TEST(Schema, WhatIsNotSupportedIsNamed) {
  for (const auto& [schema, word] :
       std::map<std::string, std::string>{{R"({"type":"string","pattern":"a"})", "pattern"},
                                          {R"({"type":"integer","minimum":3})", "minimum"},
                                          {R"({"type":"object","properties":{"a":{"not":{}}}})", "not"},
                                          {R"({"allOf":[{},{}]})", "allOf"},
                                          {R"({"type":"thing"})", "type"},
                                          {R"({"$ref":"#/nowhere"})", "#/nowhere"},
                                          {R"({"enum":[]})", "enum"},
                                          {R"({"type":"string","maxLength":-1})", "maxLength"}}) {
    const ApiResult<ByteGrammar> grammar = grammar_of_schema(Json::parse(schema));
    ASSERT_FALSE(grammar) << schema;
    EXPECT_EQ(grammar.error().status, 400);
    EXPECT_NE(grammar.error().message.find(word), std::string::npos) << grammar.error().message;
  }
}

TEST(Schema, WithoutAValueIsEmpty) {
  for (const std::string schema :
       {R"({"$ref":"#"})", R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"})
    EXPECT_TRUE(automaton_of(schema).is_empty()) << schema;
  ByteAutomaton optional =
      automaton_of(R"({"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"$ref":"#/$defs/x"}}})");
  EXPECT_TRUE(matches(optional, "{}"));
}

TEST(Schema, SizesAreBounded) {
  std::string huge = R"({"type":"array","items":{"type":"array","items":)";
  for (int i = 0; i < 12; ++i)
    huge = R"({"type":"object","properties":{"a":)" + (i ? huge : R"({"type":"string","maxLength":10000})") +
           R"(,"b":{"type":"string","minLength":10000}}})";
  const ApiResult<ByteGrammar> grammar = grammar_of_schema(Json::parse(huge));
  ASSERT_FALSE(grammar);
  EXPECT_NE(grammar.error().message.find("too large"), std::string::npos);
}

// Rules that only lead to one another, from the first to the last and back: found in one go.
TEST(Schema, LongChainsOfRules) {
  std::string schema = R"({"type":"object","properties":{)";
  for (const char* name : {"a", "b", "c", "d", "e"})
    schema += fmt::format(R"("{}":{{"type":"string","minLength":10000,"maxLength":10000}},)", name);
  schema += R"("f":{}},"required":["a"]})";
  ByteAutomaton automaton = automaton_of(schema);
  const std::string text(10000, 'x');
  EXPECT_TRUE(matches(automaton, "{\"a\":\"" + text + "\"}"));
  EXPECT_FALSE(matches(automaton, "{\"a\":\"" + text + "x\"}"));
}

// However deep an answer goes: at every point there is a way on, and it comes to an end.
TEST(Schema, DeepAnswersCanAlwaysBeCompleted) {
  const std::string required = R"({"$defs":{"a":{"type":"object","properties":{"x":{"$ref":"#/$defs/any"}},)"
                               R"("required":["x"],"additionalProperties":false},)"
                               R"("b":{"type":"object","properties":{"y":{"type":"null"}},"required":["y"]},)"
                               R"("any":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]}},"$ref":"#/$defs/any"})";
  const std::string lists = R"({"$defs":{"l":{"type":"array","items":{"anyOf":[{"$ref":"#/$defs/l"},)"
                            R"({"type":"integer"}]},"minItems":1,"maxItems":2}},"$ref":"#/$defs/l"})";
  std::mt19937 random(5);
  for (const std::string& schema : {required, lists, std::string(R"({"type":"object"})")}) {
    ByteAutomaton automaton = automaton_of(schema);
    ByteAutomaton::State state = automaton.start();
    std::string text;
    int depth = 0, deepest = 0;
    bool in_string = false, down = true;  // down: until it goes no further
    for (bool going = true; going;) {
      ASSERT_LT(text.size(), 100'000u) << schema;
      std::string next, deeper, closing;
      for (const char c : std::string_view("{}[]\",:xynultre1"))
        if (automaton.next(state, static_cast<uint8_t>(c)) != ByteAutomaton::kDead) {
          next += c;
          if (in_string ? text.ends_with("{\"") && c == 'x' : c == '{' || c == '[') deeper += c;
          if (c == '"' || (!in_string && (c == '}' || c == ']'))) closing += c;
        }
      const bool turns = deepest >= static_cast<int>(ByteAutomaton::kMaxDepth) && deeper.empty();
      down = down && !turns;
      if (down && !deeper.empty())
        next = deeper;
      else if (down && next != "}" && next != "]")
        std::erase_if(next, [](char c) { return c == '}' || c == ']'; });
      else if (!closing.empty() && random() % 4 > 0)
        next = closing;
      ASSERT_TRUE(!next.empty() || automaton.accepts(state)) << text;
      going = !next.empty();
      if (!going) break;
      text += next[random() % next.size()];
      state = automaton.next(state, static_cast<uint8_t>(text.back()));
      if (text.back() == '"') in_string = !in_string;
      if (!in_string) depth += (text.back() == '{' || text.back() == '[') - (text.back() == '}' || text.back() == ']');
      deepest = std::max(deepest, depth);
    }
    EXPECT_TRUE(nlohmann::json::accept(text)) << text.substr(0, 500);
    EXPECT_GE(deepest, static_cast<int>(ByteAutomaton::kMaxDepth)) << schema;
  }
}

// A model that says anything at all: random tokens among the allowed ones always end in JSON that parses.
TEST(Constraints, RandomAnswersParse) {
  FakeEngine engine;
  ConstraintCompiler compiler(engine);
  const std::string person =
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":8},"age":{"type":"integer"},
    "tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":3},"mail":{"type":["string","null"],"maxLength":3}},"required":["name","age"]})";
  std::vector<std::shared_ptr<const Constraint>> constraints = {*compiler.json_object(),
                                                                *compiler.json_schema(Json::parse(person))};
  std::mt19937 random(7);
  int ended = 0;
  for (int round = 0; round < 400; ++round) {
    const auto filter = constraints[static_cast<size_t>(round % 2)]->filter();
    std::vector<TokenId> generated;
    while (generated.size() < 400) {
      std::vector<bool> allowed(engine.tokenizer().vocab_size());
      filter(generated, allowed);
      ASSERT_EQ(allowed.size(), engine.tokenizer().vocab_size());
      EXPECT_FALSE(allowed[kBosToken]);
      // Closing signs are preferred, or a random string would hardly ever end.
      std::vector<TokenId> choices;
      for (size_t id = 0; id < allowed.size(); ++id)
        if (allowed[id])
          choices.insert(
              choices.end(),
              std::string_view("}]\"").find(static_cast<char>(id)) != std::string_view::npos && id < 128 ? 40 : 1,
              static_cast<TokenId>(id));
      ASSERT_FALSE(choices.empty());
      const TokenId id = choices[random() % choices.size()];
      if (id == kEndToken) break;
      generated.push_back(id);
    }
    if (generated.size() == 400) continue;
    ++ended;
    std::string text;
    for (const TokenId id : generated) text += static_cast<char>(id);
    const auto json = Json::parse(text, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << text;
    EXPECT_TRUE(json.is_object());
    if (round % 2 == 0) continue;
    EXPECT_TRUE(json.at("name").is_string());
    EXPECT_TRUE(json.at("age").is_number_integer());
  }
  EXPECT_GT(ended, 300);
}

TEST(Constraints, ARequestCanBeReplayed) {
  FakeEngine engine;
  ConstraintCompiler compiler(engine);
  const auto constraint = *compiler.choice(Json({"yes", "yellow"}));
  const auto filter = constraint->filter();
  const auto after = [&](const Constraint::Filter& f, const std::string& text) {
    std::vector<bool> allowed(engine.tokenizer().vocab_size());
    f(bytes_of(text), allowed);
    std::string out;
    for (size_t id = 0; id < allowed.size(); ++id)
      if (allowed[id]) out += id == kEndToken ? '$' : static_cast<char>(id);
    return out;
  };
  EXPECT_EQ(after(filter, ""), "y");
  EXPECT_EQ(after(filter, "ye"), "ls");
  EXPECT_EQ(after(filter, "yes"), "$");
  EXPECT_EQ(after(filter, "y"), "e") << "fewer tokens than before: begins again";
  EXPECT_EQ(after(constraint->filter(), "yel"), "l");
  EXPECT_EQ(constraint, *compiler.choice(Json({"yes", "yellow"}))) << "compiled once";
}

TEST(Constraints, DeepNestingEnds) {
  FakeEngine engine;
  ConstraintCompiler compiler(engine);
  const auto filter = (*compiler.json_object())->filter();
  std::string text = "{\"a\":";
  std::vector<bool> allowed(engine.tokenizer().vocab_size());
  for (int depth = 0; depth < 1000; ++depth) {
    filter(bytes_of(text), allowed);
    if (!allowed['[']) break;
    text += "[";
  }
  EXPECT_LT(text.size(), 300u);
  EXPECT_TRUE(allowed[']']);
}

// Every bracket may be of two kinds of list: what can be read doubles with each.
TEST(Constraints, AmbiguityWithoutEndIsAnError) {
  const Json schema = Json::parse(kBracketBomb);
  FakeEngine engine;
  ConstraintCompiler compiler(engine);
  const auto constraint = *compiler.json_schema(schema);
  std::vector<bool> allowed(engine.tokenizer().vocab_size());
  const auto filter = constraint->filter();
  size_t depth = 0;
  const auto deeper = [&] {
    for (; depth < 40; ++depth) filter(bytes_of(std::string(depth, '[')), allowed);
  };
  EXPECT_THROW(deeper(), GrammarTooComplex);
  EXPECT_GT(depth, 5u);
  for (int again = 0; again < 3; ++again)
    EXPECT_THROW(filter(bytes_of(std::string(depth, '[')), allowed), GrammarTooComplex);
  const auto other = constraint->filter();
  other(bytes_of("[[null],"), allowed);
  EXPECT_TRUE(allowed['[']) << "others who use the same schema go on";
  EXPECT_FALSE(allowed[']']);
}

}  // namespace
}  // namespace octavo
