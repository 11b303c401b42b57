// TextEngine: all that the server asks of an engine and its model. EngineAdapter makes one of Model and ServingEngine;
// tests put a scripted one in its place.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>

#include "base/json.h"
#include "engine/serving.h"

namespace octavo {

// What a request that names no sampling gets: the model's generation_config.json, else 1.0 and off.
struct SamplingDefaults {
  double temperature = 1.0, top_p = 1.0, min_p = 0.0, repetition_penalty = 1.0;
  int64_t top_k = 0;
};

class TextEngine {
 public:
  virtual ~TextEngine() = default;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual bool is_end(TokenId id) const = 0;
  // The prompt of a conversation. `variables` is an object of further template variables (tools, ...).
  virtual Result<std::string> render_chat(const Json& messages, const Json& variables) const = 0;
  // The template and the special tokens that it names; empty where the model has none.
  virtual const ChatFormat& chat_format() const = 0;
  // Tokens of prompt and answer together.
  virtual int64_t max_model_len() const = 0;
  virtual SamplingDefaults sampling_defaults() const = 0;
  // Bytes of the tokenizer's longest token. Any thread.
  size_t longest_token() const {
    std::call_once(measured_, [this] {
      for (size_t i = 0; i < tokenizer().vocab_size(); ++i)
        longest_token_ = std::max(longest_token_, tokenizer().token_bytes(static_cast<TokenId>(i)).size());
    });
    return longest_token_;
  }

  // As in ServingEngine.
  virtual Result<void> check_request(const GenerationRequest& request) const = 0;
  virtual Result<RequestId> submit(GenerationRequest request, EventSink sink) = 0;
  virtual void cancel(RequestId id) = 0;
  virtual EngineStats stats() const = 0;

 private:
  mutable std::once_flag measured_;
  mutable size_t longest_token_ = 1;
};

// `max_model_len`: 0 for what the model and the KV cache hold.
std::unique_ptr<TextEngine> make_text_engine(std::unique_ptr<Model> model, std::unique_ptr<ServingEngine> engine,
                                             int64_t max_model_len);

}  // namespace octavo
