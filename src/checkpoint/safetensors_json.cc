#include "checkpoint/safetensors_json.h"

#include <fmt/format.h>

namespace octavo {
namespace {

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 63));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 63));
    out += static_cast<char>(0x80 | (code & 63));
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 63));
    out += static_cast<char>(0x80 | (code >> 6 & 63));
    out += static_cast<char>(0x80 | (code & 63));
  }
}

}  // namespace

bool JsonScanner::fail(std::string_view what) {
  if (error_.empty()) error_ = what;
  return false;
}

void JsonScanner::skip_space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
    ++at_;
}

bool JsonScanner::open(char bracket) {
  skip_space();
  if (at_ >= text_.size() || text_[at_] != bracket) return fail(fmt::format("'{}' expected", bracket));
  ++at_;
  first_ = true;
  return true;
}

bool JsonScanner::next(char closing, bool& more) {
  skip_space();
  if (at_ >= text_.size()) return fail("the text ends inside an object or array");
  if (text_[at_] == closing) {
    ++at_;
    first_ = false;
    more = false;
    return true;
  }
  if (!first_) {
    if (text_[at_] != ',') return fail(fmt::format("',' or '{}' expected", closing));
    ++at_;
  }
  first_ = false;
  more = true;
  return true;
}

bool JsonScanner::key(std::string& out) {
  if (!string(out)) return false;
  skip_space();
  if (at_ >= text_.size() || text_[at_] != ':') return fail("':' expected");
  ++at_;
  return true;
}

bool JsonScanner::string(std::string& out) {
  out.clear();
  skip_space();
  if (at_ >= text_.size() || text_[at_] != '"') return fail("string expected");
  ++at_;
  while (true) {
    size_t plain = at_;
    while (plain < text_.size() && text_[plain] != '"' && text_[plain] != '\\' &&
           static_cast<unsigned char>(text_[plain]) >= 0x20 && static_cast<unsigned char>(text_[plain]) < 0x80)
      ++plain;
    out.append(text_, at_, plain - at_);
    at_ = plain;
    if (at_ >= text_.size()) return fail("the text ends inside a string");
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (c == '"') break;
    if (c < 0x20) return fail("control character in a string");
    if (c == '\\' ? !escape(out) : !utf8_sequence(out)) return false;
  }
  ++at_;
  return true;
}

bool JsonScanner::hex4(uint32_t& out) {
  out = 0;
  if (text_.size() - at_ < 4) return fail("incomplete \\u escape");
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = text_[at_];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return fail("bad \\u escape");
    out = out * 16 + static_cast<uint32_t>(digit);
  }
  return true;
}

bool JsonScanner::escape(std::string& out) {
  if (text_.size() - at_ < 2) return fail("the text ends inside a string");
  const char c = text_[at_ + 1];
  at_ += 2;
  constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
  if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
    out += kTo[i];
    return true;
  }
  if (c != 'u') return fail("unknown escape in a string");
  uint32_t code = 0;
  if (!hex4(code)) return false;
  if (code >= 0xDC00 && code < 0xE000) return fail("lone surrogate in a \\u escape");
  if (code >= 0xD800 && code < 0xDC00) {
    uint32_t low = 0;
    if (text_.substr(at_, 2) != "\\u") return fail("lone surrogate in a \\u escape");
    at_ += 2;
    if (!hex4(low)) return false;
    if (low < 0xDC00 || low >= 0xE000) return fail("lone surrogate in a \\u escape");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(out, code);
  return true;
}

bool JsonScanner::utf8_sequence(std::string& out) {
  const auto byte = [this](size_t i) { return static_cast<unsigned char>(text_[at_ + i]); };
  const unsigned lead = byte(0);
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text_.size() - at_ < length) return fail("invalid UTF-8");
  uint32_t code = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return fail("invalid UTF-8");
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return fail("invalid UTF-8");
  out.append(text_, at_, length);
  at_ += length;
  return true;
}

bool JsonScanner::unsigned_integer(uint64_t& out) {
  skip_space();
  const size_t begin = at_;
  out = 0;
  while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
    const auto digit = static_cast<uint64_t>(text_[at_] - '0');
    if (__builtin_mul_overflow(out, uint64_t{10}, &out) || __builtin_add_overflow(out, digit, &out))
      return fail("number is too large");
    ++at_;
  }
  if (at_ == begin) return fail("non-negative integer expected");
  if (text_[begin] == '0' && at_ - begin > 1) return fail("number with a leading zero");
  if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E'))
    return fail("non-negative integer expected");
  return true;
}

bool JsonScanner::skip_value(int max_depth) {
  skip_space();
  if (at_ >= text_.size()) return fail("value expected");
  if (max_depth <= 0) return fail("nested too deeply");
  const char c = text_[at_];
  std::string ignored;
  if (c == '"') return string(ignored);
  if (c == '{' || c == '[') {
    const char closing = c == '{' ? '}' : ']';
    if (!open(c)) return false;
    while (true) {
      bool more = false;
      if (!next(closing, more)) return false;
      if (!more) return true;
      if (c == '{' && !key(ignored)) return false;
      if (!skip_value(max_depth - 1)) return false;
      first_ = false;
    }
  }
  const size_t begin = at_;
  while (at_ < text_.size() && std::string_view("+-.0123456789aeflnrstuE").find(text_[at_]) != std::string_view::npos)
    ++at_;
  const std::string_view word = text_.substr(begin, at_ - begin);
  const bool number = !word.empty() && (word[0] == '-' || (word[0] >= '0' && word[0] <= '9'));
  if (!number && word != "true" && word != "false" && word != "null") return fail("value expected");
  return true;
}

bool JsonScanner::end() {
  skip_space();
  return at_ == text_.size() || fail("text after the end of the object");
}

}  // namespace octavo
