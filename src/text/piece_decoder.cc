#include "text/piece_decoder.h"

#include <charconv>

#include "base/json.h"
#include "text/byte_level.h"
#include "text/spec_json.h"

namespace octavo {
namespace {

constexpr std::string_view kByteLevel = "ByteLevel, or a Sequence of ByteLevel and Fuse";
constexpr std::string_view kPieces = "Metaspace, or a Sequence of Replace, ByteFallback, Fuse and Strip";

Result<void> check_byte_level(const Json& json) {
  if (json.is_null()) return unsupported_part("decoder", "null", kByteLevel);
  OCTAVO_ASSIGN(const std::string type, type_of(json, "decoder"));
  if (type == "ByteLevel") return {};
  if (type != "Sequence") return unsupported_part("decoder", type, kByteLevel);
  OCTAVO_ASSIGN(const Json* parts, array_member(json, "decoders", "decoder"));
  size_t num_byte_level = 0;
  for (const Json& part : *parts) {
    OCTAVO_ASSIGN(const std::string inner, type_of(part, "decoder"));
    if (inner == "ByteLevel") ++num_byte_level;
    if (inner != "ByteLevel" && inner != "Fuse") return unsupported_part("decoder", inner, kByteLevel);
  }
  if (num_byte_level != 1) return unsupported_part("decoder", "a Sequence without ByteLevel", kByteLevel);
  return {};
}

// The byte of "<0xHH>"; -1 for other pieces.
int byte_of(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return -1;
  int value = -1;
  const auto [end, status] = std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
  return status == std::errc() && end == piece.data() + 5 ? value : -1;
}

}  // namespace

Result<PieceDecoder> PieceDecoder::from_json(const Json& json, bool byte_fallback) {
  PieceDecoder decoder;
  decoder.byte_level_ = !byte_fallback;
  if (byte_fallback)
    OCTAVO_TRY(decoder.add(json));
  else
    OCTAVO_TRY(check_byte_level(json));
  return decoder;
}

Result<void> PieceDecoder::add(const Json& json) {
  if (json.is_null()) return unsupported_part("decoder", "null", kPieces);
  OCTAVO_ASSIGN(const std::string type, type_of(json, "decoder"));
  if (type == "ByteFallback" || type == "Fuse") return {};
  if (type == "Sequence") {
    OCTAVO_ASSIGN(const Json* parts, array_member(json, "decoders", "decoder"));
    for (const Json& part : *parts) OCTAVO_TRY(add(part));
    return {};
  }
  if (type == "Metaspace") {
    OCTAVO_ASSIGN(replaced_, text_member(json, "replacement", "decoder"));
    replacement_ = " ";
    const auto scheme = json.find("prepend_scheme");
    strips_space_ = scheme == json.end() || *scheme != "never";
    return {};
  }
  if (type == "Replace") {
    const auto pattern = json.find("pattern");
    if (!replaced_.empty() || pattern == json.end() || !pattern->is_object() || !pattern->contains("String"))
      return unsupported_part("decoder", "Replace", "one Replace of a String");
    OCTAVO_ASSIGN(replaced_, text_member(*pattern, "String", "decoder"));
    OCTAVO_ASSIGN(replacement_, text_member(json, "content", "decoder"));
    return {};
  }
  if (type != "Strip") return unsupported_part("decoder", type, kPieces);
  const bool one_space = json.value("content", "") == " " && json.value("start", 0) == 1 && json.value("stop", 0) == 0;
  if (!one_space) return unsupported_part("decoder", "Strip", "Strip of one space at the start");
  strips_space_ = true;
  return {};
}

void PieceDecoder::append(std::string_view piece, std::string& bytes) const {
  if (byte_level_) return append_piece_bytes(piece, bytes);
  if (const int byte = byte_of(piece); byte >= 0) {
    bytes += static_cast<char>(byte);
    return;
  }
  if (replaced_.empty()) {
    bytes += piece;
    return;
  }
  for (size_t at = 0;;) {
    const size_t found = piece.find(replaced_, at);
    bytes += piece.substr(at, found - at);
    if (found == std::string_view::npos) return;
    bytes += replacement_;
    at = found + replaced_.size();
  }
}

}  // namespace octavo
