// A byte-level tokenizer.json that tests write themselves.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/utf8.h"

namespace octavo {

// Bytes as byte-level BPE spells them: printable ones stand for themselves, the others for code points from 256 on.
inline std::string byte_level_piece(std::string_view bytes) {
  const auto plain = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255); };
  std::string piece;
  for (const char c : bytes) {
    const int byte = static_cast<unsigned char>(c);
    int shifted = 256;
    for (int b = 0; b < byte; ++b) shifted += plain(b) ? 0 : 1;
    append_utf8(static_cast<uint32_t>(plain(byte) ? byte : shifted), piece);
  }
  return piece;
}

// tokenizer.json: id 0 .. 255 are the bytes, then `more` in order, filled up to `size` with unused names; no merges.
// `special`: ids of special tokens, spelled <|id|>.
inline std::string byte_tokenizer_json(const std::vector<std::string>& more, int64_t size,
                                       const std::vector<int64_t>& special) {
  Json vocab = Json::object(), added = Json::array();
  for (int64_t id = 0; id < size; ++id) {
    if (std::find(special.begin(), special.end(), id) != special.end()) {
      const std::string name = "<|" + std::to_string(id) + "|>";
      added.push_back({{"id", id},
                       {"content", name},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
      vocab[name] = id;
    } else if (id < 256) {
      vocab[byte_level_piece(std::string(1, static_cast<char>(id)))] = id;
    } else if (id - 256 < static_cast<int64_t>(more.size())) {
      vocab[byte_level_piece(more[static_cast<size_t>(id - 256)])] = id;
    } else {
      vocab["unused" + std::to_string(id)] = id;
    }
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  Json json = {{"version", "1.0"}, {"added_tokens", added}, {"normalizer", nullptr}};
  json["pre_tokenizer"] = byte_level;
  json["post_processor"] = nullptr;
  json["decoder"] = byte_level;
  json["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}};
  return json.dump();
}

}  // namespace octavo
