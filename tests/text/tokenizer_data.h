// Shared by the tokenizer tests: goldens in tests/data/tokenizers (tests/tools/make_tokenizer_goldens.py).
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

namespace octavo {

inline std::filesystem::path tokenizer_data(const std::string& name) {
  return std::filesystem::path(OCTAVO_TEST_DATA) / "tokenizers" / name;
}

inline Json read_json(const std::string& name) {
  const auto path = tokenizer_data(name);
  return parse_json(read_text_file(path).value(), path.string()).value();
}

// All texts of the goldens: valid ones, then byte strings that are not UTF-8.
inline std::vector<std::string> golden_texts() {
  const Json json = read_json("texts.json");
  auto texts = json["texts"].get<std::vector<std::string>>();
  for (const Json& hex : json["bytes"]) {
    const auto digits = hex.get<std::string>();
    std::string bytes;
    for (size_t i = 0; i < digits.size(); i += 2)
      bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    texts.push_back(bytes);
  }
  return texts;
}

inline Tokenizer load_tokenizer(const std::string& name) {
  const auto path = tokenizer_data(name + ".json");
  auto tokenizer = Tokenizer::from_json(read_text_file(path).value(), path.string());
  if (!tokenizer) ADD_FAILURE() << tokenizer.error().message();
  return std::move(tokenizer).value();
}

// A byte-level tokenizer small enough to think about: the 256 bytes as ids 0..255, in order, then `merges`.
inline Json tiny_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  Json vocab = Json::object(), list = Json::array();
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const int c = itself ? b : next++;
    std::string piece;
    if (c < 0x80) {
      piece = static_cast<char>(c);
    } else {
      piece = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
    }
    vocab[piece] = b;
  }
  for (const auto& [left, right] : merges) {
    vocab[left + right] = vocab.size();
    list.push_back({left, right});
  }
  return {{"added_tokens", Json::array()}, {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},   {"post_processor", nullptr},
          {"decoder", byte_level},         {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

inline Json added_token(int id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

}  // namespace octavo
