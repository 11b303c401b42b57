// What all requests share: the body, the model's name, texts as prompts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>

#include "server/openai/fields.h"
#include "server/openai/job.h"

namespace octavo {
namespace {

// The name of the first member whose value is a number that JSON cannot hold: NaN, Infinity, 1e999.
std::string bad_number_field(std::string_view body) {
  std::string key;
  size_t i = 0;
  while (i < body.size()) {
    const char c = body[i];
    if (c == '"') {
      const size_t begin = ++i;
      while (i < body.size() && body[i] != '"') i += body[i] == '\\' ? 2 : 1;
      if (i >= body.size()) return {};
      const std::string_view text = body.substr(begin, i++ - begin);
      while (i < body.size() && (body[i] == ' ' || body[i] == '\t' || body[i] == '\n' || body[i] == '\r')) ++i;
      if (i < body.size() && body[i] == ':') key = text;
    } else if (std::string_view("{}[],: \t\r\n").find(c) != std::string_view::npos) {
      ++i;
    } else {
      const size_t end = std::min(body.find_first_of("{}[],: \t\r\n\"", i), body.size());
      const std::string word(body.substr(i, end - i));
      i = end;
      if (word == "true" || word == "false" || word == "null") continue;
      char* parsed = nullptr;
      const double value = std::strtod(word.c_str(), &parsed);
      if (*parsed == '\0' && !std::isfinite(value)) return key.substr(0, 64);
    }
  }
  return {};
}

}  // namespace

ApiResult<Json> parse_body(std::string_view body) {
  Result<Json> json = parse_json(body, "request body");
  if (!json) {
    ApiError error = api_error_of(json.error(), 400);
    error.param = bad_number_field(body);
    error.code = "invalid_json";
    return refuse(std::move(error));
  }
  if (!json->is_object()) return refuse({.message = "the request body must be a JSON object", .code = "invalid_json"});
  return std::move(*json);
}

ApiResult<std::string> checked_model(const Json& body, const std::vector<std::string>& names) {
  Fields fields(body);
  const std::optional<std::string> model = fields.text("model");
  if (fields.error()) return refuse(*fields.error());
  if (!model) return names.front();
  if (std::find(names.begin(), names.end(), *model) == names.end())
    return refuse({.status = 404,
                   .message = fmt::format("The model '{}' does not exist; this server has '{}'", model->substr(0, 256),
                                          names.front()),
                   .param = "model",
                   .code = "model_not_found"});
  return *model;
}

ApiResult<void> check_text_size(std::string_view text, const TextEngine& engine, const std::string& name) {
  const auto most_tokens = static_cast<size_t>(engine.max_model_len());
  if (text.size() > most_tokens && text.size() / engine.longest_token() > most_tokens)
    return refuse({.message = fmt::format("This model's maximum context length is {} tokens. However, your {} has {} "
                                          "bytes, and no token has more than {}. Please reduce the length of the {}.",
                                          most_tokens, name, text.size(), engine.longest_token(), name),
                   .param = name,
                   .code = "context_length_exceeded"});
  return {};
}

Prompt text_prompt(std::string_view text, bool add_special, const Tokenizer& tokenizer) {
  Prompt prompt{.tokens = tokenizer.encode(text, add_special)};
  if (!add_special) return prompt;
  const auto leading = tokenizer.leading_tokens();
  prompt.added = leading.size();
  const auto own = std::span(prompt.tokens).subspan(leading.size());
  if (!leading.empty() && own.size() >= leading.size() && std::equal(leading.begin(), leading.end(), own.begin())) {
    prompt.tokens.erase(prompt.tokens.begin(), prompt.tokens.begin() + static_cast<ptrdiff_t>(leading.size()));
    prompt.added = 0;
  }
  return prompt;
}

}  // namespace octavo
