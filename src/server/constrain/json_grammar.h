// The grammar of JSON itself: the rules that a schema's rules are made of.
#pragma once

#include "server/constrain/byte_grammar.h"

namespace octavo {

struct JsonGrammar {
  using Symbol = ByteGrammar::Symbol;
  using Sequence = ByteGrammar::Sequence;

  ByteGrammar grammar;
  Symbol space, character, string, integer, number, boolean, null, value, object, array;

  JsonGrammar();
  // Texts of a format; false for one that is only an annotation.
  bool format(std::string_view name, Symbol& out);
  // " SEQUENCE "
  Symbol quoted(const Sequence& inside);
};

}  // namespace octavo
