// A TextEngine whose answers the test writes itself, over a tokenizer of single bytes; and an Exchange that remembers.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "byte_tokenizer.h"
#include "server/http/exchange.h"
#include "server/openai/api.h"
#include "server/text_engine.h"

namespace octavo {

// Two kinds of list that hold one another: each open bracket doubles the ways to read what was written.
inline constexpr const char* kBracketBomb =
    R"({"$defs":{"X":{"anyOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/B"},{"type":"null"}]},)"
    R"("A":{"type":"array","items":{"$ref":"#/$defs/X"}},)"
    R"("B":{"type":"array","items":{"$ref":"#/$defs/X"},"maxItems":9}},"$ref":"#/$defs/X"})";

inline std::vector<TokenId> bytes_of(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

class FakeEngine : public SilentEngine {
 public:
  using SilentEngine::SilentEngine;

  Result<std::string> render_chat(const Json& messages, const Json& variables) const override {
    last_messages = messages;
    last_variables = variables;
    std::string text = bos;
    for (const Json& message : messages) {
      if (message["role"] == "refused") return fail({.what = "the template says no"});
      text += message["role"].get<std::string>() + ":" + message["content"].get<std::string>() + "\n";
    }
    return text;
  }
  Result<RequestId> submit(GenerationRequest request, EventSink sink) override {
    if (static_cast<int64_t>(requests.size()) >= queue) return fail({.what = "queue is full"});
    requests.push_back(std::move(request));
    sinks.push_back(std::move(sink));
    return requests.size();
  }
  void cancel(RequestId id) override { cancelled.push_back(id); }

  // The next event of the i-th request: each byte of `text` is a token.
  void say(size_t i, const std::string& text, std::string finish_reason = "") {
    TokenEvent event{.id = i + 1, .tokens = bytes_of(text), .text = text};
    send(i, std::move(event), std::move(finish_reason));
  }
  void send(size_t i, TokenEvent event, std::string finish_reason = "") {
    told.resize(std::max(told.size(), i + 1));
    told[i] += static_cast<int64_t>(event.tokens.size());
    event.finished = !finish_reason.empty();
    event.finish_reason = std::move(finish_reason);
    event.prompt_tokens = static_cast<int64_t>(requests[i].prompt.size());
    event.completion_tokens = told[i];
    if (requests[i].num_logprobs >= 0 && event.logprobs.empty())
      for (const TokenId id : event.tokens) event.logprobs.push_back({id, -0.5f, top(id, requests[i].num_logprobs)});
    if (requests[i].prompt_logprobs && told[i] == static_cast<int64_t>(event.tokens.size()))
      for (const TokenId id : requests[i].prompt)
        event.prompt_logprobs.push_back(
            {id, event.prompt_logprobs.empty() ? NAN : -1.5f, top(id, requests[i].num_logprobs)});
    sinks[i](event);
  }
  static std::vector<std::pair<TokenId, float>> top(TokenId id, int count) {
    std::vector<std::pair<TokenId, float>> out;
    for (int k = 0; k < count; ++k) out.emplace_back(k == 0 ? id : k, k == 0 ? -0.5f : -INFINITY);
    return out;
  }

  int64_t queue = 1000;
  std::string bos = "<bos>";  // that the template begins with
  std::vector<GenerationRequest> requests;
  std::vector<EventSink> sinks;
  std::vector<RequestId> cancelled;
  std::vector<int64_t> told;
  mutable Json last_messages, last_variables;
};

class FakeExchange final : public Exchange {
 public:
  void respond(HttpResponse r) override {
    EXPECT_FALSE(response) << "two responses";
    response = std::move(r);
  }
  void start_stream(HttpHeaders) override { streaming = true; }
  void send(std::string_view text) override { sent += text; }
  void finish() override { finished = true; }
  void on_gone(std::function<void()> callback) override { callback_ = std::move(callback); }
  bool gone() const override { return gone_; }
  void leave() {
    gone_ = true;
    if (callback_) callback_();
  }

  Json json() const { return response ? Json::parse(response->body) : Json(); }
  // The payloads of the stream, each parsed strictly; "[DONE]" as a string.
  std::vector<Json> events() const {
    std::vector<Json> out;
    for (size_t at = 0; at < sent.size();) {
      const size_t end = sent.find("\n\n", at);
      EXPECT_EQ(sent.substr(at, 6), "data: ");
      const std::string text = sent.substr(at + 6, end - at - 6);
      out.push_back(text == "[DONE]" ? Json(text) : Json::parse(text));
      at = end + 2;
    }
    return out;
  }

  std::optional<HttpResponse> response;
  std::string sent;
  bool streaming = false, finished = false;

 private:
  std::function<void()> callback_;
  bool gone_ = false;
};

// An Api over a FakeEngine; everything happens at once.
struct ApiFixture : ::testing::Test {
  ApiFixture() { api.set_engine(&engine); }

  std::shared_ptr<FakeExchange> request(HttpRequest request) {
    auto exchange = std::make_shared<FakeExchange>();
    api.handle(std::move(request), exchange);
    return exchange;
  }
  std::shared_ptr<FakeExchange> post(const std::string& path, const std::string& body) {
    return request({.method = "POST", .path = path, .body = body});
  }
  std::shared_ptr<FakeExchange> get(const std::string& path) { return request({.method = "GET", .path = path}); }
  // Expects 400 with this `param`; gives the message.
  std::string refused(const std::string& path, const std::string& body, const std::string& param) {
    const auto exchange = post(path, body);
    EXPECT_TRUE(exchange->response) << body;
    if (!exchange->response) return "";
    EXPECT_EQ(exchange->response->status, 400) << body;
    const Json error = exchange->json()["error"];
    EXPECT_EQ(error["param"], param.empty() ? Json(nullptr) : Json(param)) << body << error.dump();
    EXPECT_TRUE(error["message"].is_string() && !error["message"].get<std::string>().empty());
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_TRUE(error.contains("code"));
    return error["message"].get<std::string>();
  }
  std::string completion(const std::string& fields) { return R"({"model":"m","prompt":"ab")" + fields + "}"; }
  std::string chat(const std::string& fields) {
    return R"({"model":"m","messages":[{"role":"user","content":"hi"}])" + fields + "}";
  }

  FakeEngine engine;
  Api api{{.model_names = {"m", "path/to/m"}, .version = "1"},
          [](std::function<void()> task) { task(); },
          [](std::function<void()> task) { task(); }};
};

}  // namespace octavo
