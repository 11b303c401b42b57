// TokenizerSpec -> tokenizer.json, in the layout that the hubs' own files have.
#include <fmt/format.h>

#include <algorithm>

#include "text/tokenizer_spec.h"

namespace octavo {
namespace {

// `value` under `key`, indented to stand in the top-level object.
void append_part(std::string& out, std::string_view key, const Json& value) {
  const std::string text = value.dump(2);
  out += fmt::format("  \"{}\": ", key);
  for (const char c : text) {
    out += c;
    if (c == '\n') out += "  ";
  }
  out += ",\n";
}

std::string json_text(std::string_view text) {
  return Json(text).dump();
}

Json added_tokens_json(const std::vector<AddedToken>& tokens) {
  Json list = Json::array();
  for (const AddedToken& token : tokens)
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"single_word", token.single_word},
                    {"lstrip", token.lstrip},
                    {"rstrip", token.rstrip},
                    {"normalized", token.normalized},
                    {"special", token.special}});
  return list;
}

// "a b", which every reader knows, or ["a","b"] where a token has a space.
void append_merges(std::string& out, const TokenizerSpec& spec) {
  const Vocabulary& vocabulary = spec.vocabulary;
  const auto& merges = spec.bpe.merges();
  const bool as_text = std::none_of(merges.begin(), merges.end(), [&](const Bpe::Pair& pair) {
    const std::string_view left = vocabulary.piece(pair.left), right = vocabulary.piece(pair.right);
    return left.find(' ') != left.npos || right.find(' ') != right.npos || left.starts_with("#version");
  });
  const char* separator = "\n";
  for (const Bpe::Pair& pair : merges) {
    const std::string_view left = vocabulary.piece(pair.left), right = vocabulary.piece(pair.right);
    if (as_text) {
      out += separator;
      out += json_text(fmt::format("{} {}", left, right));
    } else {
      out += fmt::format("{}[{},{}]", separator, json_text(left), json_text(right));
    }
    separator = ",\n";
  }
}

}  // namespace

std::string write_tokenizer_json(const TokenizerSpec& spec) {
  const Vocabulary& vocabulary = spec.vocabulary;
  const BpeOptions& options = spec.bpe.options();
  std::string out = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n";
  append_part(out, "added_tokens", added_tokens_json(spec.added));
  append_part(out, "normalizer", spec.normalizer);
  append_part(out, "pre_tokenizer", spec.pre_tokenizer);
  append_part(out, "post_processor", spec.post_processor);
  append_part(out, "decoder", spec.decoder);
  out += "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": ";
  out += options.unk ? json_text(vocabulary.piece(*options.unk)) : "null";
  out += ",\n    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n";
  out += fmt::format("    \"fuse_unk\": {},\n    \"byte_fallback\": {},\n    \"ignore_merges\": {},\n",
                     options.fuse_unk, options.byte_fallback, options.ignore_merges);
  out += "    \"vocab\": {";
  // One entry a line, not indented: these are most of the file, and loading it takes as long as it is.
  const char* separator = "\n";
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (vocabulary.find(vocabulary.piece(id)) != id) continue;  // a hole, or an added token outside the model
    out += fmt::format("{}{}:{}", separator, json_text(vocabulary.piece(id)), id);
    separator = ",\n";
  }
  out += "\n    },\n    \"merges\": [";
  append_merges(out, spec);
  out += "\n    ]\n  }\n}\n";
  return out;
}

}  // namespace octavo
