// Splits a template into tokens.
#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <charconv>

#include "text/jinja/budget.h"
#include "text/jinja/printing.h"
#include "text/jinja/string_literal.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

[[noreturn]] void fail_at(size_t position, std::string what) {
  throw Failure{.what = std::move(what), .position = position};
}

bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) lex_data();
    add(TokenType::kEnd, source_.size());
    return std::move(tokens_);
  }

 private:
  char at(size_t i) const { return i < source_.size() ? source_[i] : '\0'; }
  bool starts_with(size_t i, std::string_view text) const {
    return source_.substr(std::min(i, source_.size())).starts_with(text);
  }

  Token& add(TokenType type, size_t position) {
    tokens_.push_back({.type = type, .text = {}, .position = position});
    return tokens_.back();
  }

  size_t skip_spaces(size_t i) const {
    while (i < source_.size()) {
      size_t next = i;
      if (!is_space(next_code_point(source_, &next))) break;
      i = next;
    }
    return i;
  }

  // The next "{{", "{%" or "{#".
  size_t find_tag() const {
    for (size_t i = source_.find('{', position_); i != std::string_view::npos; i = source_.find('{', i + 1))
      if (at(i + 1) == '{' || at(i + 1) == '%' || at(i + 1) == '#') return i;
    return std::string_view::npos;
  }

  void add_data(size_t begin, size_t end) {
    if (begin < end) add(TokenType::kData, begin).text = std::string(source_.substr(begin, end - begin));
  }

  // Where the text before a tag ends once the tag's sign ('-', '+' or none) and lstrip_blocks have done their work.
  size_t end_of_text(size_t begin, size_t end, char sign, bool is_variable) const {
    if (sign == '-') {
      while (end > begin) {
        size_t previous = end;
        if (!is_space(previous_code_point(source_, &previous))) break;
        end = previous;
      }
      return end;
    }
    if (sign == '+' || is_variable) return end;
    size_t line = end;
    while (line > begin && source_[line - 1] != '\n') --line;
    if (line == begin && !line_starting_) return end;
    return skip_spaces(line) >= end ? line : end;
  }

  void lex_data() {
    const size_t begin = position_, tag = find_tag();
    if (tag == std::string_view::npos) {
      add_data(begin, source_.size());
      position_ = source_.size();
      return;
    }
    const char kind = at(tag + 1);
    size_t inside = tag + 2;
    const char sign = at(inside) == '-' || at(inside) == '+' ? at(inside) : '\0';
    if (sign != '\0') ++inside;
    add_data(begin, end_of_text(begin, tag, sign, kind == '{'));
    position_ = inside;
    if (kind == '#') {
      skip_comment(tag);
    } else if (kind == '{') {
      add(TokenType::kVariableBegin, tag);
      lex_code(tag, TokenType::kVariableEnd);
    } else if (!lex_raw(tag)) {
      add(TokenType::kBlockBegin, tag);
      lex_code(tag, TokenType::kBlockEnd);
    }
    line_starting_ = position_ > 0 && source_[position_ - 1] == '\n';
  }

  // Moves behind "}" of a tag that ends with `close` at `i`; false when no tag ends there.
  bool take_close(size_t i, char close, bool trims_newline) {
    const bool strips = at(i) == '-', keeps = at(i) == '+' && trims_newline;
    const size_t end = i + (strips || keeps ? 1 : 0);
    if (at(end) != close || at(end + 1) != '}') return false;
    position_ = end + 2;
    if (strips) {
      position_ = skip_spaces(position_);
    } else if (trims_newline && !keeps && at(position_) == '\n') {
      ++position_;
    }
    return true;
  }

  void skip_comment(size_t tag) {
    for (size_t i = source_.find('#', position_); i != std::string_view::npos; i = source_.find('#', i + 1)) {
      if (at(i + 1) != '}') continue;
      const bool signed_end = i > position_ && (source_[i - 1] == '-' || source_[i - 1] == '+');
      take_close(signed_end ? i - 1 : i, '#', true);
      return;
    }
    if (position_ < source_.size()) fail_at(tag, "Missing end of comment tag");
  }

  // {% raw %} ... {% endraw %}; false when the tag is another one.
  bool lex_raw(size_t tag) {
    size_t i = skip_spaces(position_);
    if (!starts_with(i, "raw")) return false;
    i = skip_spaces(i + 3);
    if (starts_with(i, "-%}")) {
      i = skip_spaces(i + 3);
    } else if (starts_with(i, "%}")) {
      i += 2;
    } else {
      return false;
    }
    line_starting_ = source_[i - 1] == '\n';
    for (size_t end = source_.find("{%", i); end != std::string_view::npos; end = source_.find("{%", end + 1)) {
      size_t inside = end + 2;
      const char sign = at(inside) == '-' || at(inside) == '+' ? at(inside) : '\0';
      inside = skip_spaces(inside + (sign != '\0'));
      if (!starts_with(inside, "endraw")) continue;
      if (!take_close(skip_spaces(inside + 6), '%', true)) continue;
      add_data(i, end_of_text(i, end, sign, false));
      return true;
    }
    if (i < source_.size()) fail_at(tag, "Missing end of raw directive");
    position_ = i;
    return true;
  }

  void lex_code(size_t tag, TokenType end) {
    const char close = end == TokenType::kBlockEnd ? '%' : '}';
    brackets_.clear();
    while (true) {
      if (position_ >= source_.size())
        return fail_at(tag, "the tag is not closed: expected '" + std::string(1, close) + "}'");
      const size_t begin = position_;
      if (brackets_.empty() && take_close(begin, close, end == TokenType::kBlockEnd)) {
        add(end, begin);
        return;
      }
      const size_t after_spaces = skip_spaces(begin);
      if (after_spaces > begin) {
        position_ = after_spaces;
      } else {
        lex_token();
      }
    }
  }

  void lex_token() {
    const size_t begin = position_;
    const char c = source_[begin];
    if (is_ascii_digit(c)) return lex_number();
    if (c == '\'' || c == '"') return lex_string();
    size_t after = begin;
    if (is_identifier_start(next_code_point(source_, &after))) {
      while (after < source_.size()) {
        size_t next = after;
        if (!is_identifier_part(next_code_point(source_, &next))) break;
        after = next;
      }
      add(TokenType::kName, begin).text = std::string(source_.substr(begin, after - begin));
      position_ = after;
      return;
    }
    for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="})
      if (starts_with(begin, two)) return add_operator(two);
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) != std::string_view::npos)
      return add_operator(source_.substr(begin, 1));
    fail_at(begin, "unexpected char " + repr_of_text(source_.substr(begin, after - begin)));
  }

  void add_operator(std::string_view text) {
    const size_t begin = position_;
    const char c = text[0];
    if (c == '(' || c == '[' || c == '{') {
      brackets_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (brackets_.empty()) fail_at(begin, fmt::format("unexpected '{}'", c));
      if (brackets_.back() != c) fail_at(begin, fmt::format("unexpected '{}', expected '{}'", c, brackets_.back()));
      brackets_.pop_back();
    }
    add(TokenType::kOperator, begin).text = std::string(text);
    position_ += text.size();
  }

  void lex_string() {
    const size_t begin = position_;
    const char quote = source_[begin];
    size_t i = begin + 1;
    while (i < source_.size() && source_[i] != quote) i += source_[i] == '\\' ? 2 : 1;
    if (i >= source_.size()) fail_at(begin, "the string is not closed");
    add(TokenType::kString, begin).text = decode_string_literal(source_.substr(begin + 1, i - begin - 1), begin + 1);
    position_ = i + 1;
  }

  // (digits "_")* digits; the end, or `i` when there is none.
  size_t skip_digits(size_t i) const {
    if (!is_ascii_digit(at(i))) return i;
    while (is_ascii_digit(at(i)) || (at(i) == '_' && is_ascii_digit(at(i + 1)))) ++i;
    return i;
  }

  void lex_number() {
    const size_t begin = position_;
    if (begin == 0 || source_[begin - 1] != '.') {
      const size_t whole = skip_digits(begin);
      size_t end = whole;
      if (at(whole) == '.' && is_ascii_digit(at(whole + 1))) end = skip_digits(whole + 1);
      if (at(end) == 'e' || at(end) == 'E') {
        const size_t digits = end + 1 + (at(end + 1) == '+' || at(end + 1) == '-');
        if (is_ascii_digit(at(digits))) end = skip_digits(digits);
      }
      if (end > whole) return add_float(begin, end);
    }
    const char prefix = static_cast<char>(at(begin + 1) | 0x20);
    const int base = source_[begin] != '0' ? 10 : prefix == 'b' ? 2 : prefix == 'o' ? 8 : prefix == 'x' ? 16 : 10;
    size_t first = begin + (base == 10 ? 0 : 2), end = first;
    const bool only_zeros = base == 10 && source_[begin] == '0';
    const auto is_digit_here = [&](char c) {
      if (only_zeros) return c == '0';
      const int digit = is_ascii_digit(c)                        ? c - '0'
                        : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                 : 99;
      return digit < base;
    };
    while (is_digit_here(at(end)) || (at(end) == '_' && is_digit_here(at(end + 1)))) ++end;
    if (base != 10 && end == first) {  // "0x" without digits: the number 0, then a name
      first = begin;
      end = begin + 1;
    }
    add_integer(begin, first, end, first == begin ? 10 : base);
  }

  std::string without_underscores(size_t begin, size_t end) const {
    std::string digits;
    for (const char c : source_.substr(begin, end - begin))
      if (c != '_') digits += c;
    return digits;
  }

  void add_float(size_t begin, size_t end) {
    const std::string digits = without_underscores(begin, end);
    add(TokenType::kFloat, begin).real = std::strtod(digits.c_str(), nullptr);
    position_ = end;
  }

  void add_integer(size_t begin, size_t first, size_t end, int base) {
    const std::string digits = without_underscores(first, end);
    int64_t value = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value, base).ec != std::errc())
      fail_at(begin, "integers beyond 64 bits are not supported");
    add(TokenType::kInteger, begin).integer = value;
    position_ = end;
  }

  std::string_view source_;
  size_t position_ = 0;
  bool line_starting_ = true;  // what was lexed last ended with a newline
  std::string brackets_;       // the closing brackets still owed
  std::vector<Token> tokens_;
};

}  // namespace

std::string normalize_newlines(std::string_view source, bool drop_last) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (drop_last && !out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

std::string describe(const Token& token) {
  switch (token.type) {
    case TokenType::kData:
      return "template data / text";
    case TokenType::kVariableBegin:
      return "begin of print statement";
    case TokenType::kVariableEnd:
      return "end of print statement";
    case TokenType::kBlockBegin:
      return "begin of statement block";
    case TokenType::kBlockEnd:
      return "end of statement block";
    case TokenType::kString:
      return "string";
    case TokenType::kInteger:
      return "integer";
    case TokenType::kFloat:
      return "float";
    case TokenType::kEnd:
      return "end of template";
    default:
      return token.text;
  }
}

}  // namespace octavo::jinja
