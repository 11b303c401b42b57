#include "text/split_pattern.h"

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "text/utf8.h"

namespace octavo {
namespace {

// What \s, \w, \h mean in Oniguruma; PCRE2's own differ (U+180E is a space there, marks are not word characters).
constexpr std::string_view kSpaces =
    R"(\x09-\x0D\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHex = "0-9A-Fa-f";
constexpr size_t kMaxPattern = 64 << 10;

// Grows as far as a match needs; most need none of it.
pcre2_jit_stack* thread_jit_stack() {
  struct Freed {
    pcre2_jit_stack* stack;
    ~Freed() { pcre2_jit_stack_free(stack); }
  };
  thread_local const Freed stack{pcre2_jit_stack_create(size_t{32} << 10, size_t{32} << 20, nullptr)};
  return stack.stack;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        OCTAVO_TRY(escape());
      } else if (in_class_) {
        OCTAVO_TRY(class_character(c));
      } else {
        OCTAVO_TRY(plain_character(c));
      }
    }
    return std::move(out_);
  }

 private:
  Result<void> unsupported(std::string_view construct) const {
    return fail({.what = fmt::format("regular expression uses {}, which is not supported", construct),
                 .where = fmt::format("offset {} of the pattern", at_),
                 .found = std::string(in_)});
  }

  Result<void> escape() {
    if (at_ + 1 >= in_.size()) return unsupported("a backslash at its end");
    const char c = in_[at_ + 1];
    std::string_view set;
    if (c == 's' || c == 'S') set = kSpaces;
    if (c == 'w' || c == 'W') set = kWord;
    if (c == 'h' || c == 'H') set = kHex;
    if (!set.empty()) {
      const bool negated = c < 'a';
      if (in_class_ && negated) return unsupported(fmt::format("\\{} inside a character class", c));
      out_ += in_class_ ? std::string(set) : fmt::format("[{}{}]", negated ? "^" : "", set);
      at_ += 2;
    } else if (c == 'u') {
      const std::string_view digits = in_.substr(std::min(at_ + 2, in_.size()), 4);
      if (digits.size() != 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
        return unsupported("\\u without four hexadecimal digits");
      out_ += fmt::format("\\x{{{}}}", digits);
      at_ += 6;
    } else if ((c == 'p' || c == 'P' || c == 'x' || c == 'o') && at_ + 2 < in_.size() && in_[at_ + 2] == '{') {
      const size_t close = in_.find('}', at_);
      if (close == std::string_view::npos) return unsupported("an unfinished {");
      out_ += in_.substr(at_, close + 1 - at_);
      at_ = close + 1;
    } else {
      out_ += in_.substr(at_, 2);
      at_ += 2;
    }
    return {};
  }

  Result<void> class_character(char c) {
    if (c == '[') {
      const size_t close = in_.find(":]", at_);
      if (!in_.substr(at_).starts_with("[:") || close == std::string_view::npos)
        return unsupported("a set inside a character class");
      out_ += in_.substr(at_, close + 2 - at_);
      at_ = close + 2;
      return {};
    }
    if (in_.substr(at_).starts_with("&&")) return unsupported("the set operator &&");
    if (c == ']' && at_ > class_start_) in_class_ = false;
    out_ += c;
    ++at_;
    return {};
  }

  Result<void> plain_character(char c) {
    if (c == '[') {
      in_class_ = true;
      out_ += c;
      if (in_.substr(++at_).starts_with("^")) out_ += in_[at_++];
      class_start_ = at_;
      return {};
    }
    if (in_.substr(at_).starts_with("(?")) return group();
    // Possessive in PCRE2, a repeated repetition in Oniguruma.
    if (c == '+' && at_ > 0 && in_[at_ - 1] == '}' && out_.ends_with('}') && closes_interval())
      return unsupported("{n,m}+");
    out_ += c;
    ++at_;
    return {};
  }

  bool closes_interval() const {
    const size_t open = in_.rfind('{', at_);
    return open != std::string_view::npos &&
           in_.substr(open + 1, at_ - 2 - open).find_first_not_of("0123456789,") == std::string_view::npos;
  }

  // "(?" and the option letters after it: Ruby's m is PCRE2's s.
  Result<void> group() {
    out_ += "(?";
    at_ += 2;
    const size_t end = in_.find_first_not_of("imx-", at_);
    if (end == std::string_view::npos || end == at_ || (in_[end] != ':' && in_[end] != ')')) return {};
    for (; at_ < end; ++at_) out_ += in_[at_] == 'm' ? 's' : in_[at_];
    return {};
  }

  std::string_view in_;
  std::string out_;
  size_t at_ = 0, class_start_ = 0;
  bool in_class_ = false;
};

}  // namespace

struct SplitPattern::State {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  bool jit = false;

  ~State() {
    pcre2_code_free(code);
    pcre2_match_context_free(context);
  }

  static Result<void> compile(State& state, std::string_view pattern, uint32_t options, std::string_view source) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    auto* compile_context = pcre2_compile_context_create(nullptr);
    pcre2_set_newline(compile_context, PCRE2_NEWLINE_LF);
    state.code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset,
                               compile_context);
    pcre2_compile_context_free(compile_context);
    if (state.code == nullptr) {
      PCRE2_UCHAR message[256] = {};
      pcre2_get_error_message(error, message, sizeof(message));
      return fail({.what = "regular expression cannot be used",
                   .where = fmt::format("offset {} of {}", offset, pattern),
                   .found = fmt::format("{} in {}", reinterpret_cast<const char*>(message), source)});
    }
    state.context = pcre2_match_context_create(nullptr);
    pcre2_set_match_limit(state.context, 10'000'000);
    pcre2_set_heap_limit(state.context, 256 << 10);  // KiB
    pcre2_jit_stack_assign(
        state.context, [](void*) { return thread_jit_stack(); }, nullptr);
    state.jit = pcre2_jit_compile(state.code, PCRE2_JIT_COMPLETE) == 0;
    return {};
  }

  int match(std::string_view text, size_t start, pcre2_match_data* data) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    if (jit) {
      const int result = pcre2_jit_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK, data, context);
      if (result != PCRE2_ERROR_JIT_STACKLIMIT) return result;
    }
    return pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
  }
};

SplitPattern::SplitPattern() : state_(std::make_unique<State>()) {}
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

Result<std::string> pcre2_from_oniguruma(std::string_view pattern) {
  return Translator(pattern).run();
}

Result<SplitPattern> SplitPattern::regex(std::string_view pattern) {
  if (pattern.size() > kMaxPattern)
    return fail({.what = "regular expression is too long",
                 .found = fmt::format("{} bytes", pattern.size()),
                 .expected = fmt::format("at most {} bytes", kMaxPattern)});
  OCTAVO_ASSIGN(const std::string translated, pcre2_from_oniguruma(pattern));
  SplitPattern result;
  OCTAVO_TRY(State::compile(*result.state_, translated,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, pattern));
  return result;
}

Result<SplitPattern> SplitPattern::literal(std::string_view text) {
  SplitPattern result;
  OCTAVO_TRY(State::compile(*result.state_, text, PCRE2_UTF | PCRE2_LITERAL, text));
  return result;
}

void SplitPattern::find_all(std::string_view text, std::vector<TextRange>& matches) const {
  if (text.empty()) return;
  struct Freed {
    pcre2_match_data* data;
    ~Freed() { pcre2_match_data_free(data); }
  };
  thread_local const Freed match_data{pcre2_match_data_create(1, nullptr)};
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(match_data.data);
  size_t at = 0, last_end = text.size() + 1;
  while (at <= text.size() && state_->match(text, at, match_data.data) >= 0) {
    const size_t begin = offsets[0], end = offsets[1];
    if (end < begin || begin < at) return;  // \K inside a look-around
    if (begin == end && end == last_end) {
      int size = 1;
      if (at < text.size()) code_point_at(text, at, &size);
      at += static_cast<size_t>(size);
      continue;
    }
    matches.push_back({begin, end});
    at = last_end = end;
  }
}

}  // namespace octavo
