// What the fuzzer of constrained decoding does with an input: a JSON schema, then (after a zero byte) choices among the
// bytes that the grammar allows. No state may be without a way on, and what is accepted must be JSON.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/constrain/json_schema.h"

namespace octavo {

inline void follow_choices(ByteAutomaton automaton, std::string_view choices) {
  automaton.allow_steps(10'000'000);
  if (automaton.is_empty()) return;
  ByteAutomaton::State state = automaton.start();
  std::string out;
  for (size_t i = 0; i < 256; ++i) {
    if (automaton.accepts(state)) OCTAVO_CHECK(nlohmann::json::accept(out), "{}", out);
    std::string next;
    for (int byte = 0; byte < 256; ++byte)
      if (automaton.next(state, static_cast<uint8_t>(byte)) != ByteAutomaton::kDead) next += static_cast<char>(byte);
    OCTAVO_CHECK(!next.empty() || automaton.accepts(state), "no way on after {}", out);
    if (next.empty()) return;
    const size_t choice = i < choices.size() ? static_cast<uint8_t>(choices[i]) : i * 31;
    out += next[choice % next.size()];
    state = automaton.next(state, static_cast<uint8_t>(out.back()));
  }
}

inline void fuzz_constraint(std::span<const std::byte> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  const size_t zero = std::min(text.find('\0'), text.size());
  const Result<Json> schema = parse_json(text.substr(0, zero), "schema");
  if (!schema) return;
  ApiResult<ByteGrammar> grammar = grammar_of_schema(*schema);
  if (!grammar) return;
  try {
    follow_choices(ByteAutomaton(std::move(*grammar)), text.substr(std::min(zero + 1, text.size())));
  } catch (const GrammarTooComplex&) {  // the request's end, no more
  }
}

}  // namespace octavo
