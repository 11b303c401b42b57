#include "text/byte_level.h"

#include <array>

namespace octavo {
namespace {

constexpr bool stands_for_itself(int b) {
  return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

constexpr int kEnd = 0x144;  // 0x100 + the 68 bytes that do not stand for themselves

struct Alphabet {
  std::array<uint16_t, 256> code_points{};
  std::array<int16_t, kEnd> bytes{};  // -1: no byte has this character
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.bytes) byte = -1;
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const int c = stands_for_itself(b) ? b : next++;
    alphabet.code_points[static_cast<size_t>(b)] = static_cast<uint16_t>(c);
    alphabet.bytes[static_cast<size_t>(c)] = static_cast<int16_t>(b);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();
static_assert(kAlphabet.code_points[' '] == 0x120 && kAlphabet.code_points['\n'] == 0x10A &&
              kAlphabet.code_points[0xAD] == kEnd - 1);

}  // namespace

uint32_t byte_level_code_point(uint8_t byte) {
  return kAlphabet.code_points[byte];
}

void append_byte_level(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const uint32_t code_point = kAlphabet.code_points[static_cast<uint8_t>(c)];
    if (code_point < 0x80) {
      out.push_back(static_cast<char>(code_point));
    } else {
      out.push_back(static_cast<char>(0xC0 | code_point >> 6));
      out.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
    }
  }
}

void append_piece_bytes(std::string_view piece, std::string& out) {
  const size_t start = out.size();
  for (size_t i = 0; i < piece.size(); ++i) {
    uint32_t c = static_cast<uint8_t>(piece[i]);
    if (c >= 0xC0 && c < 0xE0 && i + 1 < piece.size()) c = (c & 0x1F) << 6 | (static_cast<uint8_t>(piece[++i]) & 0x3F);
    const int byte = c < kEnd ? kAlphabet.bytes[c] : -1;
    if (byte < 0) {
      out.resize(start);
      out.append(piece);
      return;
    }
    out.push_back(static_cast<char>(byte));
  }
}

}  // namespace octavo
