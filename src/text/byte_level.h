// The byte alphabet of byte-level BPE: every byte has a printable character (space -> "Ġ"), so that vocabularies can
// be written as text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace octavo {

// The code point that stands for a byte (below U+0144).
uint32_t byte_level_code_point(uint8_t byte);

// Appends the characters that stand for `bytes`.
void append_byte_level(std::string_view bytes, std::string& out);

// Appends the bytes that `piece` stands for. A piece with a character outside the alphabet stands for itself.
void append_piece_bytes(std::string_view piece, std::string& out);

}  // namespace octavo
