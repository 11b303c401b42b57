// From a JSON schema (a subset) to the grammar of the texts that are JSON and follow it. Every text of such a grammar
// parses: valid UTF-8, no lone surrogates, numbers of bounded size, nesting of bounded depth.
//
// Supported: type (also a list), properties, required, additionalProperties, items, minItems, maxItems, enum, const,
// anyOf, oneOf (as anyOf), allOf of one, $ref into the schema, minLength, maxLength, format date, time, date-time and
// uuid (other formats are annotations). Properties come in the schema's order; additional ones only where the schema
// asks for them. White space: at most one blank or one line break with indentation between two tokens.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "server/constrain/byte_grammar.h"
#include "server/openai/api_error.h"

namespace octavo {

// Error 400: a keyword that is not supported (named), a malformed schema, one that is too large.
ApiResult<ByteGrammar> grammar_of_schema(const Json& schema);
// A call of one of these functions, {"name": ..., "arguments": ...}; schemas[i]: of the arguments of names[i], with its
// own root for references. Errors as above.
ApiResult<ByteGrammar> grammar_of_calls(const std::vector<std::string>& names, const Json& schemas);
// Any JSON object.
ByteGrammar grammar_of_json_object();
// One of these texts, as they are.
ByteGrammar grammar_of_choices(const std::vector<std::string>& choices);

}  // namespace octavo
