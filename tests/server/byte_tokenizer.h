// A tokenizer of single bytes, and an engine that generates nothing: enough to parse requests with.
#pragma once

#include <string>

#include "base/check.h"
#include "base/json.h"
#include "server/text_engine.h"
#include "text/utf8.h"

namespace octavo {

// Token ids 0 .. 255 are bytes; kBosToken and kEndToken are special.
inline constexpr TokenId kBosToken = 256, kEndToken = 257;

inline Tokenizer byte_tokenizer(bool add_bos = true) {
  Json vocab = Json::object();
  uint32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool shown = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string piece;
    append_utf8(shown ? static_cast<uint32_t>(byte) : next++, piece);
    vocab[piece] = byte;
  }
  const auto special = [](int id, const char* text) {
    return Json{{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  Json json = {
      {"version", "1.0"},
      {"added_tokens", {special(kBosToken, "<bos>"), special(kEndToken, "<end>")}},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
  if (add_bos)
    json["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"pair", Json::array()},
        {"special_tokens", {{"<bos>", {{"id", "<bos>"}, {"ids", {kBosToken}}, {"tokens", {"<bos>"}}}}}}};
  Result<Tokenizer> tokenizer = Tokenizer::from_json(json.dump(), "test tokenizer");
  OCTAVO_CHECK(tokenizer.has_value(), "{}", tokenizer.error().message());
  return std::move(*tokenizer);
}

class SilentEngine : public TextEngine {
 public:
  explicit SilentEngine(bool add_bos = true) : tokenizer_(byte_tokenizer(add_bos)) {}

  const Tokenizer& tokenizer() const override { return tokenizer_; }
  bool is_end(TokenId id) const override { return id == kEndToken; }
  Result<std::string> render_chat(const Json& messages, const Json&) const override {
    return "<bos>" + messages.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  const ChatFormat& chat_format() const override { return format; }
  int64_t max_model_len() const override { return context; }
  SamplingDefaults sampling_defaults() const override { return defaults; }
  Result<void> check_request(const GenerationRequest&) const override { return {}; }
  Result<RequestId> submit(GenerationRequest, EventSink) override { return RequestId{1}; }
  void cancel(RequestId) override {}
  EngineStats stats() const override { return {}; }

  int64_t context = 256;
  SamplingDefaults defaults;
  ChatFormat format;

 private:
  Tokenizer tokenizer_;
};

}  // namespace octavo
