#include "server/constrain/json_grammar.h"

namespace octavo {
namespace {

using Symbol = ByteGrammar::Symbol;
using Sequence = ByteGrammar::Sequence;

// One character inside a string: valid UTF-8, or an escape that is not half of a surrogate pair.
Symbol string_character(ByteGrammar& g) {
  ByteSet plain;
  for (size_t byte = 0x20; byte < 0x80; ++byte) plain.set(byte);
  plain.reset('"');
  plain.reset('\\');
  const Symbol tail = g.range(0x80, 0xBF);
  const Symbol hex = g.any_of("0123456789abcdefABCDEF");
  const Symbol unicode =
      g.rule_of({{g.any_of("0123456789abcefABCEF"), hex, hex, hex}, {g.any_of("dD"), g.range('0', '7'), hex, hex}});
  const Symbol escape = g.rule_of({{g.any_of("\"\\/bfnrt")}, {g.any_of("u"), unicode}});
  return g.rule_of({{g.any_of(plain)},
                    {g.any_of("\\"), escape},
                    {g.range(0xC2, 0xDF), tail},
                    {g.any_of("\xE0"), g.range(0xA0, 0xBF), tail},
                    {g.range(0xE1, 0xEC), tail, tail},
                    {g.any_of("\xED"), g.range(0x80, 0x9F), tail},
                    {g.range(0xEE, 0xEF), tail, tail},
                    {g.any_of("\xF0"), g.range(0x90, 0xBF), tail, tail},
                    {g.range(0xF1, 0xF3), tail, tail, tail},
                    {g.any_of("\xF4"), g.range(0x80, 0x8F), tail, tail}});
}

}  // namespace

JsonGrammar::JsonGrammar() {
  ByteGrammar& g = grammar;
  constexpr int kMaxIndent = 20, kMaxDigits = 15;
  const Symbol digit = g.range('0', '9');
  space = g.rule_of({{}, g.literal(" "), {g.any_of("\n"), g.repeat(g.any_of(" \t"), 0, kMaxIndent)}});
  character = string_character(g);
  const Symbol characters = g.add_rule();
  g.add_alternative(characters, {g.any_of("\"")});
  g.add_alternative(characters, {character, characters});
  string = g.rule_of({{g.any_of("\""), characters}});

  const Symbol magnitude = g.rule_of({g.literal("0"), {g.range('1', '9'), g.repeat(digit, 0, kMaxDigits)}});
  integer = g.rule_of({{magnitude}, {g.any_of("-"), magnitude}});
  const Symbol fraction = g.optional({g.any_of("."), g.repeat(digit, 1, kMaxDigits)});
  const Symbol exponent = g.optional({g.any_of("eE"), g.optional({g.any_of("+-")}), g.repeat(digit, 1, 2)});
  number = g.rule_of({{integer, fraction, exponent}});
  boolean = g.rule_of({g.literal("true"), g.literal("false")});
  null = g.rule_of({g.literal("null")});

  value = g.add_rule();
  const Symbol comma = g.any_of(","), colon = g.any_of(":");
  const Symbol member = g.rule_of({{string, space, colon, space, g.inner(value), space}});
  const Symbol members = g.add_rule();
  g.add_alternative(members, g.literal("}"));
  g.add_alternative(members, {comma, space, member, members});
  object = g.rule_of({{g.any_of("{"), space, g.rule_of({g.literal("}"), {member, members}})}});
  const Symbol elements = g.add_rule();
  g.add_alternative(elements, g.literal("]"));
  g.add_alternative(elements, {comma, space, g.inner(value), space, elements});
  array = g.rule_of({{g.any_of("["), space, g.rule_of({g.literal("]"), {g.inner(value), space, elements}})}});
  for (const Symbol kind : {object, array, string, number, boolean, null}) g.add_alternative(value, {kind});
}

ByteGrammar::Symbol JsonGrammar::quoted(const Sequence& inside) {
  Sequence sequence = {grammar.any_of("\"")};
  ByteGrammar::append(sequence, inside);
  sequence.push_back(grammar.any_of("\""));
  return grammar.rule_of({sequence});
}

bool JsonGrammar::format(std::string_view name, Symbol& out) {
  ByteGrammar& g = grammar;
  const Symbol digit = g.range('0', '9'), dash = g.any_of("-"), colon = g.any_of(":");
  const auto two = [&](char low, char high, char last) {  // 00 .. HL; tens below `high` take any digit
    return g.rule_of(
        {{g.range(static_cast<uint8_t>(low), static_cast<uint8_t>(high - 1)), digit},
         {g.range(static_cast<uint8_t>(high), static_cast<uint8_t>(high)), g.range('0', static_cast<uint8_t>(last))}});
  };
  const Symbol from_one = g.range('1', '9');
  const Symbol month = g.rule_of({{g.any_of("0"), from_one}, {g.any_of("1"), g.range('0', '2')}});
  const Symbol day = g.rule_of({{g.any_of("0"), from_one}, {g.any_of("1"), digit}, {g.any_of("2"), g.range('0', '8')}});
  const Sequence date = {digit, digit, digit, digit, dash, month, dash, day};
  const Symbol sixty = two('0', '5', '9'), hour = two('0', '2', '3');
  const Symbol zone = g.rule_of({g.literal("Z"), {g.any_of("+-"), hour, colon, sixty}});
  Sequence time = {hour, colon, sixty, colon, sixty, g.optional({g.any_of("."), g.repeat(digit, 1, 9)}), zone};
  if (name == "date") {
    out = quoted(date);
  } else if (name == "time") {
    out = quoted(time);
  } else if (name == "date-time") {
    Sequence both = date;
    both.push_back(g.any_of("T"));
    ByteGrammar::append(both, time);
    out = quoted(both);
  } else if (name == "uuid") {
    const Symbol hex = g.any_of("0123456789abcdef");
    const Symbol four = g.repeat(hex, 4, 4);
    out = quoted({four, four, dash, four, dash, four, dash, four, dash, four, four, four});
  } else {
    return false;
  }
  return true;
}

}  // namespace octavo
