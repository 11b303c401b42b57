// Escapes in string literals.
#include "text/jinja/string_literal.h"

#include <fmt/format.h>

#include "text/jinja/budget.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// jinja2 turns what is not ASCII into escapes before it decodes, so that a backslash in front keeps the escape's
// letters.
std::string escape_letters(char32_t c) {
  const auto code = static_cast<uint32_t>(c);
  if (code < 0x100) return fmt::format("x{:02x}", code);
  if (code < 0x10000) return fmt::format("u{:04x}", code);
  return fmt::format("U{:08x}", code);
}

class Decoder {
 public:
  Decoder(std::string_view body, size_t position) : body_(body), offset_(position) {}

  std::string run() {
    while (i_ < body_.size()) {
      if (body_[i_] != '\\') {
        out_ += body_[i_++];
        continue;
      }
      escape_ = i_++;
      decode_escape();
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(std::string what) const {
    throw Failure{.what = std::move(what), .position = offset_ + escape_};
  }

  void decode_escape() {
    if (i_ >= body_.size()) fail("the string ends with a backslash");
    const char c = body_[i_++];
    switch (c) {
      case '\n':
        return;
      case 'a':
        out_ += '\a';
        return;
      case 'b':
        out_ += '\b';
        return;
      case 'f':
        out_ += '\f';
        return;
      case 'n':
        out_ += '\n';
        return;
      case 'r':
        out_ += '\r';
        return;
      case 't':
        out_ += '\t';
        return;
      case 'v':
        out_ += '\v';
        return;
      case '\\':
      case '\'':
      case '"':
        out_ += c;
        return;
      case 'x':
        return decode_hex(2, "truncated \\xXX escape");
      case 'u':
        return decode_hex(4, "truncated \\uXXXX escape");
      case 'U':
        return decode_hex(8, "truncated \\UXXXXXXXX escape");
      case 'N':
        fail("\\N{...} escapes are not supported");
      default:
        break;
    }
    --i_;
    if (c >= '0' && c <= '7') return decode_octal();
    out_ += '\\';
    if (static_cast<unsigned char>(c) >= 0x80) {
      out_ += escape_letters(next_code_point(body_, &i_));
    } else {
      out_ += c;
      ++i_;
    }
  }

  void decode_octal() {
    char32_t code = 0;
    for (int digits = 0; digits < 3 && i_ < body_.size() && body_[i_] >= '0' && body_[i_] <= '7'; ++digits)
      code = code * 8 + static_cast<char32_t>(body_[i_++] - '0');
    append_code_point(&out_, code);
  }

  void decode_hex(int digits, const char* truncated) {
    uint64_t code = 0;
    for (int k = 0; k < digits; ++k, ++i_) {
      const int digit = i_ < body_.size() ? hex_digit(body_[i_]) : -1;
      if (digit < 0) fail(truncated);
      code = code * 16 + static_cast<uint64_t>(digit);
    }
    if (code > 0x10ffff) fail("illegal Unicode character");
    if (code >= 0xd800 && code < 0xe000) fail("half of a surrogate pair is not a character");
    append_code_point(&out_, static_cast<char32_t>(code));
  }

  std::string_view body_;
  size_t offset_, i_ = 0, escape_ = 0;
  std::string out_;
};

}  // namespace

std::string decode_string_literal(std::string_view body, size_t position) {
  return Decoder(body, position).run();
}

}  // namespace octavo::jinja
