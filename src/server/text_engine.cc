#include "server/text_engine.h"

#include <algorithm>

namespace octavo {
namespace {

class EngineAdapter final : public TextEngine {
 public:
  EngineAdapter(std::unique_ptr<Model> model, std::unique_ptr<ServingEngine> engine, int64_t max_model_len)
      : model_(std::move(model)), engine_(std::move(engine)) {
    max_model_len_ = std::min(model_->config().context_length(), engine_->kv_cache_tokens());
    if (max_model_len > 0) max_model_len_ = std::min(max_model_len_, max_model_len);
  }

  const Tokenizer& tokenizer() const override { return model_->tokenizer(); }
  bool is_end(TokenId id) const override { return model_->is_end(id); }
  Result<std::string> render_chat(const Json& messages, const Json& variables) const override {
    return model_->render_chat(messages, variables);
  }
  const ChatFormat& chat_format() const override { return model_->chat_format(); }
  int64_t max_model_len() const override { return max_model_len_; }
  SamplingDefaults sampling_defaults() const override {
    const auto& config = model_->checkpoint().generation_config();
    SamplingDefaults defaults;
    // A temperature of 0 in a file that asks for no sampling is not what a client without one expects.
    if (config.temperature && *config.temperature > 0) defaults.temperature = std::min(2.0f, *config.temperature);
    if (config.top_p && *config.top_p > 0 && *config.top_p <= 1) defaults.top_p = *config.top_p;
    if (config.min_p && *config.min_p >= 0 && *config.min_p <= 1) defaults.min_p = *config.min_p;
    if (config.repetition_penalty && *config.repetition_penalty > 0)
      defaults.repetition_penalty = *config.repetition_penalty;
    if (config.top_k && *config.top_k > 0) defaults.top_k = *config.top_k;
    return defaults;
  }

  Result<void> check_request(const GenerationRequest& request) const override {
    return engine_->check_request(request);
  }
  Result<RequestId> submit(GenerationRequest request, EventSink sink) override {
    return engine_->submit(std::move(request), std::move(sink));
  }
  void cancel(RequestId id) override { engine_->cancel(id); }
  EngineStats stats() const override { return engine_->stats(); }

 private:
  std::unique_ptr<Model> model_;
  std::unique_ptr<ServingEngine> engine_;  // uses the model: destroyed first
  int64_t max_model_len_ = 0;
};

}  // namespace

std::unique_ptr<TextEngine> make_text_engine(std::unique_ptr<Model> model, std::unique_ptr<ServingEngine> engine,
                                             int64_t max_model_len) {
  return std::make_unique<EngineAdapter>(std::move(model), std::move(engine), max_model_len);
}

}  // namespace octavo
