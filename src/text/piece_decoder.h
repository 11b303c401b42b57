// From the pieces of a vocabulary to text: the decoder of a tokenizer.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace octavo {

class PieceDecoder {
 public:
  // Byte-level: ByteLevel, alone or with Fuse. With byte_fallback: Metaspace, or a Sequence of Replace (one text by
  // another), ByteFallback, Fuse and Strip of one space at the start.
  static Result<PieceDecoder> from_json(const nlohmann::ordered_json& json, bool byte_fallback);

  // Appends the bytes that a piece stands for.
  void append(std::string_view piece, std::string& bytes) const;
  // A space that the whole text begins with is not part of it.
  bool strips_space() const { return strips_space_; }

 private:
  Result<void> add(const nlohmann::ordered_json& json);

  bool byte_level_ = true, strips_space_ = false;
  std::string replaced_, replacement_;
};

}  // namespace octavo
