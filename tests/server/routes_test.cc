// Paths, methods, who may ask at all, tokens and back, and what is counted.
#include "fake_engine.h"

namespace octavo {
namespace {

using Routes = ApiFixture;

TEST_F(Routes, PathsAndMethods) {
  EXPECT_EQ(get("/health")->response->status, 200);
  EXPECT_EQ(get("/nothing")->response->status, 404);
  EXPECT_EQ(get("/v1/completions")->response->status, 405);
  EXPECT_EQ(get("/version")->json()["version"], "1");
  const Json models = get("/v1/models")->json();
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "m");
  EXPECT_EQ(models["data"][0]["object"], "model");
  EXPECT_EQ(models["data"][0]["max_model_len"], 256);
  EXPECT_EQ(get("/v1/models/m")->json(), models["data"][0]);
  EXPECT_EQ(get("/v1/models/path%2fto/m")->json(), models["data"][0]);
  for (const std::string name : {"other", "", "m%", "m%2", "%ff"}) {
    const auto exchange = get("/v1/models/" + name);
    EXPECT_EQ(exchange->response->status, 404) << name;
    EXPECT_EQ(exchange->json()["error"]["code"], "model_not_found") << name;
  }
}

TEST_F(Routes, TokenizeAndBack) {
  Json json = post("/tokenize", R"({"prompt":"ab","return_token_strs":true})")->json();
  EXPECT_EQ(json["tokens"], Json({kBosToken, 'a', 'b'}));
  EXPECT_EQ(json["count"], 3);
  EXPECT_EQ(json["max_model_len"], 256);
  EXPECT_EQ(json["token_strs"][1], "a");
  EXPECT_EQ(post("/tokenize", R"({"prompt":"ab","add_special_tokens":false})")->json()["count"], 2);
  EXPECT_EQ(post("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})")->json()["tokens"][0], kBosToken);
  EXPECT_EQ(post("/detokenize", R"({"tokens":[97,98]})")->json()["prompt"], "ab");
  refused("/detokenize", R"({"tokens":[258]})", "tokens");
  refused("/tokenize", "{}", "prompt");
  engine.format = {.template_source = "{{ messages }}", .bos_token = "<bos>", .eos_token = "<end>"};
  json = get("/tokenizer_info")->json();
  EXPECT_EQ(json["eos_token"], "<end>");
  EXPECT_EQ(json["bos_token"], "<bos>");
  EXPECT_EQ(json["chat_template"], "{{ messages }}");
  EXPECT_EQ(json["pad_token"], nullptr) << "what the model does not name is null, not \"\"";
}

TEST(Access, KeysOriginsAndReadiness) {
  FakeEngine engine;
  Api api{{.model_names = {"m"}, .api_key = "secret", .cors_origins = {"https://a.example"}},
          [](std::function<void()> task) { task(); },
          [](std::function<void()> task) { task(); }};
  const auto status = [&](HttpRequest request) {
    const auto exchange = std::make_shared<FakeExchange>();
    api.handle(std::move(request), exchange);
    return exchange->response ? exchange->response->status : 0;
  };
  api.set_progress(0.5);
  EXPECT_EQ(status({.method = "GET", .path = "/health"}), 503);
  EXPECT_EQ(status({.method = "GET", .path = "/health/live"}), 200);
  EXPECT_EQ(status({.method = "GET", .path = "/v1/models", .authorization = "Bearer secret"}), 503);
  api.set_engine(&engine);
  EXPECT_EQ(status({.method = "GET", .path = "/health"}), 200);
  EXPECT_EQ(status({.method = "GET", .path = "/v1/models"}), 401);
  EXPECT_EQ(status({.method = "GET", .path = "/v1/models", .authorization = "Bearer secreT"}), 401);
  EXPECT_EQ(status({.method = "GET", .path = "/v1/models", .authorization = "secret"}), 401);
  EXPECT_EQ(status({.method = "GET", .path = "/v1/models", .authorization = "Bearer secret"}), 200);
  EXPECT_EQ(status({.method = "GET", .path = "/metrics"}), 200);
  HttpRequest models{.method = "GET", .path = "/v1/models", .authorization = "Bearer secret", .host = "localhost:8000"};
  for (const auto& [origin, expected] : std::map<std::string, int>{
           {"https://a.example", 200}, {"http://localhost:8000", 200}, {"https://b.example", 403}, {"null", 403}}) {
    models.origin = origin;
    EXPECT_EQ(status(models), expected) << origin;
  }
  EXPECT_EQ(status({.method = "OPTIONS", .path = "/v1/chat/completions", .origin = "https://a.example"}), 204);
  api.set_draining();
  models.origin.clear();
  EXPECT_EQ(status(models), 503);
}

TEST(Access, PreflightsAreAllowedTheHeadersThatTheyAskFor) {
  FakeEngine engine;
  Api api{{.model_names = {"m"}, .cors_origins = {"https://a.example"}},
          [](std::function<void()> task) { task(); },
          [](std::function<void()> task) { task(); }};
  api.set_engine(&engine);
  const auto allowed = [&](const std::string& asked) -> std::string {
    const auto exchange = std::make_shared<FakeExchange>();
    api.handle({.method = "OPTIONS",
                .path = "/v1/chat/completions",
                .origin = "https://a.example",
                .requested_headers = asked},
               exchange);
    for (const auto& [name, value] : exchange->response->headers)
      if (name == "Access-Control-Allow-Headers") return value;
    return "none";
  };
  EXPECT_EQ(allowed("authorization,content-type,x-stainless-os"), "authorization,content-type,x-stainless-os");
  EXPECT_EQ(allowed(""), "Authorization, Content-Type");
}

// A page whose own name leads to this machine is of the server's origin; its name gives it away.
TEST(Access, WithoutAKeyOnlyNamesOfThisMachine) {
  FakeEngine engine;
  const auto status = [&](bool local_only, const std::string& host, std::vector<std::string> origins = {}) {
    Api api{{.model_names = {"m"}, .cors_origins = std::move(origins), .local_only = local_only},
            [](std::function<void()> task) { task(); },
            [](std::function<void()> task) { task(); }};
    api.set_engine(&engine);
    const auto exchange = std::make_shared<FakeExchange>();
    api.handle({.method = "GET", .path = "/v1/models", .origin = "", .host = host}, exchange);
    return exchange->response->status;
  };
  for (const std::string host :
       {"localhost", "localhost:8000", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "[::1]", "app.localhost:8000", ""})
    EXPECT_EQ(status(true, host), 200) << host;
  for (const std::string host : {"evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1",
                                 "xlocalhost", "[::2]:8000"})
    EXPECT_EQ(status(true, host), 403) << host;
  EXPECT_EQ(status(false, "anything.example"), 200) << "with a key, or on all addresses";
  EXPECT_EQ(status(true, "proxy.example", {"https://proxy.example"}), 200);
  EXPECT_EQ(status(true, "other.example", {"https://proxy.example"}), 403);
}

TEST_F(Routes, MetricsAddUp) {
  for (int i = 0; i < 5; ++i) {
    post("/v1/completions", completion(R"(,"n":2)"));
    const size_t first = engine.requests.size() - 2;
    engine.say(first, "abc", "stop");
    engine.say(first + 1, "de", "length");
  }
  refused("/v1/completions", completion(",\"n\":0"), "n");
  const std::string text = get("/metrics")->response->body;
  const auto has = [&](const std::string& line) { EXPECT_NE(text.find(line + "\n"), std::string::npos) << line; };
  has("vllm:prompt_tokens_total{model_name=\"m\"} 15");
  has("vllm:generation_tokens_total{model_name=\"m\"} 25");
  has("vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 5");
  has("vllm:request_success_total{model_name=\"m\",finished_reason=\"length\"} 5");
  has("vllm:time_to_first_token_seconds_count{model_name=\"m\"} 10");
  has("vllm:e2e_request_latency_seconds_count{model_name=\"m\"} 10");
  has("vllm:inter_token_latency_seconds_count{model_name=\"m\"} 15");
  has("vllm:request_time_per_output_token_seconds_count{model_name=\"m\"} 10");
  EXPECT_EQ(text.find("vllm:time_per_output_token_seconds"), std::string::npos)
      << "this old name means the time between tokens";
  has("octavo:requests_rejected_total{model_name=\"m\"} 1");
  has("octavo:kv_clipped_total{model_name=\"m\",side=\"k\"} 0");
  EXPECT_NE(text.find("le=\"0.0005\""), std::string::npos);
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("inf"), std::string::npos);
}

}  // namespace
}  // namespace octavo
