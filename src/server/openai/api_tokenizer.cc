// /tokenizer_info, /tokenize, /detokenize: the tokenizer by itself, for clients that have none.
#include <fmt/format.h>

#include "server/openai/api.h"
#include "server/openai/fields.h"
#include "server/openai/json_text.h"

namespace octavo {

void Api::get_tokenizer_info(const HttpRequest&, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers) {
  const ChatFormat format = engine_->chat_format();
  Json json = Json::object();
  const std::pair<const char*, const std::string*> members[] = {{"bos_token", &format.bos_token},
                                                                {"eos_token", &format.eos_token},
                                                                {"pad_token", &format.pad_token},
                                                                {"unk_token", &format.unk_token},
                                                                {"chat_template", &format.template_source}};
  for (const auto& [name, text] : members) json[name] = text->empty() ? Json() : Json(*text);
  json["vocab_size"] = engine_->tokenizer().vocab_size();
  json["model_max_length"] = engine_->max_model_len();
  exchange->respond({.body = to_text(json), .headers = std::move(headers)});
}

void Api::answer_on_worker(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers,
                           std::function<ApiResult<Json>(const Json& body)> work) {
  worker_([this, text = request.body, exchange, headers = std::move(headers), work = std::move(work)]() mutable {
    if (exchange->gone()) return;
    const auto result = [&]() -> ApiResult<Json> {
      try {
        OCTAVO_API_ASSIGN(const Json body, parse_body(text));
        OCTAVO_API_TRY(checked_model(body, options_.model_names));
        return work(body);
      } catch (const std::exception& exception) {
        return octavo::refuse(unexpected_error(exception));
      }
    };
    auto shared = std::make_shared<ApiResult<Json>>(result());
    network_([this, shared, exchange, headers = std::move(headers)]() mutable {
      if (!*shared) return refuse(exchange, shared->error(), std::move(headers));
      exchange->respond({.body = to_text(**shared), .headers = std::move(headers)});
    });
  });
}

void Api::post_tokenize(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers) {
  answer_on_worker(request, exchange, std::move(headers), [this](const Json& body) -> ApiResult<Json> {
    Fields fields(body);
    const std::optional<std::string> prompt = fields.text("prompt");
    const bool special = fields.boolean("add_special_tokens").value_or(true);
    const bool strings = fields.boolean("return_token_strs").value_or(false);
    if (!prompt && fields.get("messages") == nullptr) fields.fail("prompt", "'prompt' or 'messages' is missing");
    if (fields.error()) return octavo::refuse(*fields.error());
    std::vector<TokenId> tokens;
    if (!prompt) {
      OCTAVO_API_ASSIGN(tokens, chat_tokens(body, *engine_, true));
    } else {
      tokens = text_prompt(*prompt, special, engine_->tokenizer()).tokens;
    }
    Json out = {{"count", tokens.size()}, {"max_model_len", engine_->max_model_len()}, {"tokens", tokens}};
    if (!strings) return out;
    out["token_strs"] = Json::array();
    for (const TokenId id : tokens) out["token_strs"].push_back(engine_->tokenizer().token_piece(id));
    return out;
  });
}

void Api::post_detokenize(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers) {
  answer_on_worker(request, exchange, std::move(headers), [this](const Json& body) -> ApiResult<Json> {
    Fields fields(body);
    const Json* list = fields.array("tokens");
    if (list == nullptr) fields.fail("tokens", "'tokens' is missing");
    if (fields.error()) return octavo::refuse(*fields.error());
    std::vector<TokenId> tokens;
    for (const Json& json : *list) {
      const std::optional<int64_t> id = whole_number(json);
      if (!id || *id < 0 || *id >= static_cast<int64_t>(engine_->tokenizer().vocab_size()))
        return octavo::refuse(
            {.message = fmt::format("'tokens' must hold token ids from 0 to {}", engine_->tokenizer().vocab_size() - 1),
             .param = "tokens"});
      tokens.push_back(static_cast<TokenId>(*id));
    }
    return Json{{"prompt", engine_->tokenizer().decode(tokens, false)}};
  });
}

}  // namespace octavo
