// ChatTemplate: the border between the Jinja interpreter, which throws, and the rest, which does not.
#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "text/jinja/budget.h"
#include "text/jinja/builtins.h"
#include "text/jinja/from_json.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"
#include "text/jinja/unicode.h"
#include "text/utf8.h"

namespace octavo {
namespace {

constexpr size_t kMaxSource = size_t{4} << 20;
// Live values may take a few times the largest output, and enough to work with when that is small.
constexpr size_t kMemoryPerOutputByte = 8, kBaseMemory = size_t{16} << 20;

Error describe(const jinja::Failure& failure, std::string_view where, std::string_view source, size_t position) {
  Error error{.what = failure.what, .where = std::string(where), .expected = failure.expected};
  if (position != jinja::Failure::kUnknown && position <= source.size()) {
    const std::string_view before = source.substr(0, position);
    const size_t newline = before.rfind('\n'), line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    error.where += fmt::format(", line {}, column {}", std::count(before.begin(), before.end(), '\n') + 1,
                               jinja::count_code_points(before.substr(line_begin)) + 1);
  }
  return error;
}

}  // namespace

struct ChatTemplate::State {
  std::string where, source;
  jinja::Template parsed;
};

ChatTemplate::ChatTemplate() : state_(std::make_unique<State>()) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view where) {
  if (source.size() > kMaxSource)
    return fail({.what = "the chat template is too large",
                 .where = std::string(where),
                 .found = fmt::format("{} bytes", source.size()),
                 .expected = fmt::format("at most {} bytes", kMaxSource)});
  if (!is_valid_utf8(source))
    return fail({.what = "the chat template is not valid UTF-8", .where = std::string(where)});
  ChatTemplate parsed;
  parsed.state_->where = where;
  parsed.state_->source = jinja::normalize_newlines(source, true);
  try {
    parsed.state_->parsed = jinja::parse_template(parsed.state_->source);
  } catch (const jinja::Failure& failure) {
    return fail(describe(failure, where, parsed.state_->source, failure.position));
  }
  return parsed;
}

Result<std::string> ChatTemplate::render(const Json& variables, TemplateLimits limits, int64_t now) const {
  if (!variables.is_object())
    return fail({.what = "the variables of a chat template must be a JSON object", .where = state_->where});
  size_t memory = 0;
  if (__builtin_mul_overflow(limits.max_output, kMemoryPerOutputByte, &memory) ||
      __builtin_add_overflow(memory, kBaseMemory, &memory))
    memory = static_cast<size_t>(-1);
  size_t position = jinja::Failure::kUnknown;
  try {
    jinja::Interpreter::Variables values;
    for (const auto& [name, value] : variables.items()) values.emplace(name, jinja::from_json(value));
    jinja::add_globals(&values);
    jinja::Budget budget({.text = limits.max_output, .memory = memory, .steps = limits.max_steps});
    jinja::Interpreter interpreter(std::move(values), limits.max_depth,
                                   now >= 0 ? now : static_cast<int64_t>(std::time(nullptr)));
    try {
      return interpreter.run(state_->parsed);
    } catch (...) {
      position = interpreter.position();
      throw;
    }
  } catch (const jinja::Failure& failure) {
    return fail(describe(failure, state_->where, state_->source,
                         failure.position != jinja::Failure::kUnknown ? failure.position : position));
  }
}

}  // namespace octavo
