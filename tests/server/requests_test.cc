// What requests become: fields, prompts, limits, and the errors that name what is wrong.
#include <fmt/format.h>

#include <thread>

#include "fake_engine.h"

namespace octavo {
namespace {

struct Requests : ApiFixture {
  const GenerationRequest& accepted(const std::string& path, const std::string& body) {
    const auto exchange = post(path, body);
    EXPECT_FALSE(exchange->response) << body << exchange->response->body;
    kept_.push_back(exchange);
    return engine.requests.back();
  }
  std::vector<std::shared_ptr<FakeExchange>> kept_;
};

TEST_F(Requests, FieldsArriveInTheEngine) {
  const GenerationRequest& r = accepted(
      "/v1/completions",
      completion(
          R"(,"temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,"repetition_penalty":1.2,"presence_penalty":0.3,
        "frequency_penalty":-0.4,"seed":9,"logit_bias":{"5":-100,"6":2.5},"stop":["x","yz"],"stop_token_ids":[3],
        "max_tokens":20,"min_tokens":2,"ignore_eos":true,"cache_salt":"s","user":"u","unknown_field":{"a":1})"));
  EXPECT_EQ(r.sampling.temperature, 0.5f);
  EXPECT_EQ(r.sampling.top_p, 0.9f);
  EXPECT_EQ(r.sampling.top_k, 7);
  EXPECT_EQ(r.sampling.min_p, 0.1f);
  EXPECT_EQ(r.sampling.repetition_penalty, 1.2f);
  EXPECT_EQ(r.sampling.presence_penalty, 0.3f);
  EXPECT_EQ(r.sampling.frequency_penalty, -0.4f);
  EXPECT_EQ(r.sampling.seed, sample_seed(9, 0));
  EXPECT_EQ(r.sampling.logit_bias.at(5), -100.0f);
  EXPECT_EQ(r.stop, (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(r.stop_token_ids, std::vector<TokenId>{3});
  EXPECT_EQ(r.max_tokens, 20);
  EXPECT_EQ(r.min_tokens, 2);
  EXPECT_TRUE(r.ignore_eos);
  EXPECT_EQ(r.cache_salt, "s");
}

TEST_F(Requests, DefaultsComeFromTheModel) {
  engine.defaults = {.temperature = 0.6, .top_p = 0.95, .repetition_penalty = 1.1, .top_k = 20};
  const GenerationRequest& r =
      accepted("/v1/chat/completions", chat(R"(,"max_tokens":null,"temperature":null,"stop":null)"));
  EXPECT_EQ(r.sampling.temperature, 0.6f);
  EXPECT_EQ(r.sampling.top_k, 20);
  EXPECT_FALSE(r.sampling.seed);
  EXPECT_EQ(r.max_tokens, 256 - static_cast<int64_t>(r.prompt.size())) << "chat: what the context leaves";
  EXPECT_EQ(accepted("/v1/completions", completion("")).max_tokens, 16);
}

TEST_F(Requests, BadSamplingValuesNameTheField) {
  for (const std::string path : {"/v1/completions", "/v1/chat/completions"}) {
    const auto body = [&](const std::string& fields) {
      return path == "/v1/completions" ? completion(fields) : chat(fields);
    };
    for (const std::string value : {"NaN", "Infinity", "-Infinity", "1e999", "-1", "999999", "\"hot\"", "[1]", "true"})
      refused(path, body(",\"temperature\":" + value), "temperature");
    for (const std::string value : {"-1", "0", "1.5", "NaN"}) refused(path, body(",\"top_p\":" + value), "top_p");
    for (const std::string value : {"-2", "1000000000000", "1.5"}) refused(path, body(",\"top_k\":" + value), "top_k");
    for (const std::string value : {"2", "-0.1"}) refused(path, body(",\"min_p\":" + value), "min_p");
    for (const std::string value : {"0", "-1", "NaN"})
      refused(path, body(",\"repetition_penalty\":" + value), "repetition_penalty");
    refused(path, body(",\"presence_penalty\":1e30"), "presence_penalty");
    refused(path, body(",\"typical_p\":0.5"), "typical_p");
    for (const std::string value : {"18446744073709551616", "-1", "0.5"})
      refused(path, body(",\"seed\":" + value), "seed");
    for (const std::string value :
         {R"({"99999999":1})", R"({"-1":1})", R"({"abc":1})", R"({"5":1e30})", R"({"5":"x"})", "[]"})
      refused(path, body(",\"logit_bias\":" + value), "logit_bias");
    refused(path, body(",\"stop_token_ids\":[-5]"), "stop_token_ids");
    for (const std::string value :
         {"\"\"", "[\"\"]", "[1]", "5", R"(["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])"})
      refused(path, body(",\"stop\":" + value), "stop");
    for (const std::string value : {"0", "-1", "129", "1.5"}) refused(path, body(",\"n\":" + value), "n");
    for (const std::string value : {"-1", "1e30", "1.5", "\"9\""})
      refused(path, body(",\"max_tokens\":" + value), "max_tokens");
    refused(path, body(",\"stream\":1"), "stream");
    refused(path, body(",\"stream_options\":{\"include_usage\":true}"), "stream_options");
    refused(path, body(",\"stream\":true,\"stream_options\":{\"include_usage\":3}"), "stream_options.include_usage");
    refused(path, body(",\"use_beam_search\":true"), "use_beam_search");
  }
  refused("/v1/chat/completions", chat(",\"max_tokens\":0"), "max_tokens");
  EXPECT_TRUE(engine.requests.empty());
}

TEST_F(Requests, EdgesOfSamplingAreFine) {
  for (const std::string fields :
       {",\"temperature\":0", ",\"temperature\":1e-4", ",\"temperature\":1e-8", ",\"top_k\":-1",
        ",\"top_k\":2000000000", ",\"top_p\":1", ",\"seed\":18446744073709551615", ",\"max_tokens\":16.0",
        ",\"max_tokens\":9223372036854775808"})
    accepted("/v1/completions", completion(fields));
  EXPECT_EQ(engine.requests.back().max_tokens, 256 - 3) << "clamped to the room that the prompt leaves";
}

TEST_F(Requests, PromptsOfEveryKind) {
  EXPECT_EQ(accepted("/v1/completions", R"({"prompt":"ab"})").prompt, (std::vector<TokenId>{kBosToken, 'a', 'b'}));
  EXPECT_EQ(accepted("/v1/completions", R"({"prompt":"<bos>ab"})").prompt, (std::vector<TokenId>{kBosToken, 'a', 'b'}))
      << "a text that begins with BOS gets no second one";
  EXPECT_EQ(accepted("/v1/completions", R"({"prompt":[97,98]})").prompt, (std::vector<TokenId>{'a', 'b'}));
  EXPECT_EQ(accepted("/v1/completions", R"({"prompt":""})").prompt, std::vector<TokenId>{kBosToken});
  engine.requests.clear();
  accepted("/v1/completions", R"({"prompt":["a",[98],"c"]})");
  ASSERT_EQ(engine.requests.size(), 3u);
  EXPECT_EQ(engine.requests[1].prompt, std::vector<TokenId>{'b'});
}

TEST_F(Requests, BadPromptsNameTheirPlace) {
  const std::string path = "/v1/completions";
  refused(path, R"({})", "prompt");
  refused(path, R"({"prompt":null})", "prompt");
  refused(path, R"({"prompt":5})", "prompt");
  refused(path, R"({"prompt":[]})", "prompt");
  refused(path, R"({"prompt":[[]]})", "prompt");
  refused(path, R"({"prompt":["a",[]]})", "prompt[1]");
  refused(path, R"({"prompt":["a",5]})", "prompt[1]");
  refused(path, R"({"prompt":[[1],[258]]})", "prompt[1]");
  for (const std::string id : {"-1", "258", "2147483648", "5279552648203111001", "1.5", "\"a\"", "null"})
    refused(path, "{\"prompt\":[97," + id + "]}", "prompt");
  EXPECT_TRUE(engine.requests.empty()) << "a batch fails as a whole";
}

TEST(RequestsWithoutBos, EmptyPromptsAreRefused) {
  FakeEngine engine(false);
  Api api{
      {.model_names = {"m"}}, [](std::function<void()> task) { task(); }, [](std::function<void()> task) { task(); }};
  api.set_engine(&engine);
  for (const auto& [prompt, param] : std::map<std::string, std::string>{
           {"\"\"", "prompt"}, {"[]", "prompt"}, {"[\"\"]", "prompt"}, {"[\"a\",\"\"]", "prompt[1]"}}) {
    const auto exchange = std::make_shared<FakeExchange>();
    api.handle({.method = "POST", .path = "/v1/completions", .body = "{\"prompt\":" + prompt + "}"}, exchange);
    ASSERT_TRUE(exchange->response);
    EXPECT_EQ(exchange->response->status, 400);
    EXPECT_EQ(exchange->json()["error"]["param"], param);
  }
}

TEST_F(Requests, ChatMessagesReachTheTemplate) {
  accepted("/v1/chat/completions", R"({"messages":[{"role":"system","content":"s"},
      {"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},
      {"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
      {"role":"tool","content":"r","tool_call_id":"c"}],"chat_template_kwargs":{"thinking":false}})");
  EXPECT_EQ(engine.last_messages[1]["content"], "one\ntwo");
  EXPECT_EQ(engine.last_messages[2]["content"], "");
  EXPECT_EQ(engine.last_messages[2]["tool_calls"][0]["function"]["arguments"], Json({{"x", 1}}));
  EXPECT_EQ(engine.last_messages[3]["tool_call_id"], "c");
  EXPECT_EQ(engine.last_variables["thinking"], false);
  EXPECT_EQ(engine.last_variables["add_generation_prompt"], true);
  EXPECT_FALSE(engine.last_variables.contains("tools"));
  EXPECT_EQ(std::count(engine.requests.back().prompt.begin(), engine.requests.back().prompt.end(), kBosToken), 1)
      << "the template's BOS is the only one";
}

TEST_F(Requests, OddMessageLists) {
  const std::string path = "/v1/chat/completions";
  refused(path, R"({})", "messages");
  refused(path, R"({"messages":[]})", "messages");
  refused(path, R"({"messages":"hi"})", "messages");
  refused(path, R"({"messages":["hi"]})", "messages[0]");
  refused(path, R"({"messages":[{"content":"x"}]})", "messages[0].role");
  refused(path, R"({"messages":[{"role":"user","content":5}]})", "messages[0].content");
  refused(path, R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})",
          "messages[0].content");
  EXPECT_EQ(refused(path, R"({"messages":[{"role":"refused","content":"x"}]})", "messages"), "the template says no");
  accepted(path, R"({"messages":[{"role":"system","content":"x"}]})");
  accepted(path, R"({"messages":[{"role":"assistant","content":""}]})");
  accepted(path, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null}]})");
  EXPECT_EQ(engine.last_messages[1]["content"], "");
  accepted(path, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant"}]})");
  EXPECT_EQ(engine.last_messages[1]["content"], "");
  accepted(path, R"({"messages":[{"role":"user","content":[]}]})");
  accepted(path, R"({"messages":[{"role":"user","content":[{"type":"text","text":""}]}]})");
  accepted(path, R"({"messages":[{"role":"tool","content":"x"}]})");
}

TEST_F(Requests, ContextOverflowInTheWordsThatClientsKnow) {
  const std::string prompt(300, 'a');
  const std::string message =
      refused("/v1/completions", "{\"prompt\":\"" + prompt + "\",\"max_tokens\":100}", "prompt");
  EXPECT_NE(message.find("This model's maximum context length is 256 tokens"), std::string::npos) << message;
  EXPECT_NE(message.find("401 tokens (301 in the prompt, 100 in the completion)"), std::string::npos) << message;
  const auto exchange = post("/v1/completions", "{\"prompt\":\"" + prompt + "\"}");
  EXPECT_EQ(exchange->json()["error"]["code"], "context_length_exceeded");
  const auto tokens = [](int count) {
    return "{\"prompt\":" + Json(std::vector<int>(static_cast<size_t>(count), 97)).dump();
  };
  EXPECT_EQ(accepted("/v1/completions", tokens(255) + ",\"max_tokens\":100}").max_tokens, 1);
  EXPECT_EQ(accepted("/v1/completions", tokens(250) + ",\"max_tokens\":1000000000}").max_tokens, 6);
  refused("/v1/completions", tokens(256) + "}", "prompt");
  EXPECT_EQ(accepted("/v1/completions", tokens(256) + ",\"max_tokens\":0,\"echo\":true}").max_tokens, 0);
  refused("/v1/completions", tokens(257) + ",\"max_tokens\":0,\"echo\":true}", "prompt");
}

// Where no text of this size can fit, nobody spends time on it.
TEST_F(Requests, TextsBeyondTheContextAreNotTokenized) {
  const std::string text(256 * 5 + 5, 'a');  // the longest token, <bos>, has five bytes
  std::string message = refused("/v1/completions", R"({"prompt":["b",")" + text + "\"]}", "prompt[1]");
  EXPECT_NE(message.find("maximum context length is 256 tokens. However, your prompt[1] has 1285 bytes"),
            std::string::npos)
      << message;
  message = refused("/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + text + "\"}]}", "messages");
  EXPECT_NE(message.find("maximum context length is 256 tokens. However, your messages"), std::string::npos) << message;
  message = refused("/v1/completions", "{\"prompt\":\"" + text.substr(6) + "\"}", "prompt");
  EXPECT_EQ(message.find("bytes"), std::string::npos) << message << " (it could have fit)";
  EXPECT_EQ(post("/tokenize", "{\"prompt\":\"" + text + "\"}")->json()["count"], 1286) << "counting has no such limit";
}

struct LateWork : Requests {
  LateWork() { late.set_engine(&engine); }
  std::shared_ptr<FakeExchange> post_late(const std::string& path, const std::string& body) {
    const auto exchange = std::make_shared<FakeExchange>();
    late.handle({.method = "POST", .path = path, .body = body}, exchange);
    return exchange;
  }
  void work() {
    for (const auto& task : std::exchange(tasks, {})) task();
  }
  std::vector<std::function<void()>> tasks;
  Api late{{.model_names = {"m"}},
           [](std::function<void()> task) { task(); },
           [this](std::function<void()> task) { tasks.push_back(std::move(task)); }};
};

TEST_F(LateWork, NothingIsDoneForClientsThatAreGone) {
  const auto gone = post_late("/v1/chat/completions", chat(""));
  const auto counts = post_late("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})");
  gone->leave();
  counts->leave();
  work();
  EXPECT_TRUE(engine.last_messages.is_null()) << "not even rendered";
  EXPECT_TRUE(engine.requests.empty());
  const auto stays = post_late("/v1/chat/completions", chat(""));
  work();
  EXPECT_EQ(engine.requests.size(), 1u);
}

TEST_F(LateWork, TheWaitForAWorkerIsPartOfTheLatencies) {
  post_late("/v1/completions", completion(""));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  work();
  engine.send(0, {.tokens = {'a'}, .text = "a", .queue_seconds = 0}, "stop");
  const auto exchange = std::make_shared<FakeExchange>();
  late.handle({.method = "GET", .path = "/metrics"}, exchange);
  const std::string& text = exchange->response->body;
  for (const std::string name :
       {"vllm:request_queue_time_seconds", "vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"}) {
    const std::string line = name + "_sum{model_name=\"m\"} ";
    const size_t at = text.find(line);
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_GE(std::stod(text.substr(at + line.size())), 0.019) << name;
  }
}

TEST_F(Requests, LogprobFieldsHaveLimits) {
  const std::string path = "/v1/chat/completions";
  EXPECT_EQ(accepted(path, chat(",\"logprobs\":true")).num_logprobs, 0);
  EXPECT_EQ(accepted(path, chat(",\"logprobs\":true,\"top_logprobs\":20")).num_logprobs, 20);
  EXPECT_EQ(accepted(path, chat("")).num_logprobs, -1);
  for (const std::string count : {"21", "-1"})
    refused(path, chat(",\"logprobs\":true,\"top_logprobs\":" + count), "top_logprobs");
  refused(path, chat(",\"top_logprobs\":3"), "top_logprobs");
  refused(path, chat(",\"logprobs\":3"), "logprobs");
  EXPECT_EQ(accepted("/v1/completions", completion(",\"logprobs\":5")).num_logprobs, 5);
  EXPECT_EQ(accepted("/v1/completions", completion(",\"logprobs\":true")).num_logprobs, 1);
  EXPECT_EQ(accepted("/v1/completions", completion(",\"logprobs\":0")).num_logprobs, 0);
  EXPECT_FALSE(engine.requests.back().prompt_logprobs);
  EXPECT_TRUE(accepted("/v1/completions", completion(",\"logprobs\":1,\"echo\":true")).prompt_logprobs);
  refused("/v1/completions", completion(",\"logprobs\":21"), "logprobs");
  refused("/v1/completions", completion(",\"max_tokens\":0"), "max_tokens");
}

TEST_F(Requests, SamplesHaveDifferentRepeatableSeeds) {
  accepted("/v1/completions", R"({"prompt":["a","b"],"n":2,"seed":5,"temperature":1})");
  ASSERT_EQ(engine.requests.size(), 4u);
  EXPECT_NE(*engine.requests[0].sampling.seed, *engine.requests[1].sampling.seed);
  EXPECT_EQ(engine.requests[0].sampling.seed, engine.requests[2].sampling.seed);
  EXPECT_EQ(engine.requests[2].prompt, (std::vector<TokenId>{kBosToken, 'b'}));
}

TEST_F(Requests, ModelsByEitherNameAndNoOther) {
  accepted("/v1/completions", R"({"model":"path/to/m","prompt":"a"})");
  const auto exchange = post("/v1/completions", R"({"model":"other","prompt":"a"})");
  EXPECT_EQ(exchange->response->status, 404);
  EXPECT_EQ(exchange->json()["error"]["code"], "model_not_found");
  refused("/v1/completions", R"({"model":5,"prompt":"a"})", "model");
}

TEST_F(Requests, BodiesThatAreNoRequest) {
  for (const std::string body :
       {"", "{", "[]", "5", "nul", "{\"prompt\":\"a\",}", "{\"prompt\":\"\xff\"}", "{\"a\":1,\"a\":2}"})
    refused("/v1/completions", body, "");
  refused("/v1/completions", std::string(100000, '['), "");
}

TEST_F(Requests, LongConversations) {
  engine.context = 1'000'000;
  std::string messages;
  for (int i = 0; i < 10'000; ++i)
    messages += fmt::format(R"({}{{"role":"{}","content":"{}"}})", i ? "," : "", i % 2 ? "assistant" : "user", i);
  accepted("/v1/chat/completions", "{\"messages\":[" + messages + "]}");
  EXPECT_EQ(engine.last_messages.size(), 10'000u);
  EXPECT_EQ(engine.last_messages[9'999]["content"], "9999");
}

TEST_F(Requests, SpecialTokensAsAskedFor) {
  EXPECT_EQ(accepted("/v1/completions", R"({"prompt":"ab","add_special_tokens":false})").prompt,
            (std::vector<TokenId>{'a', 'b'}));
  EXPECT_EQ(accepted("/v1/completions", R"({"prompt":"ab","add_special_tokens":true})").prompt,
            (std::vector<TokenId>{kBosToken, 'a', 'b'}));
  const auto count = [&] {
    const auto& prompt = engine.requests.back().prompt;
    return std::count(prompt.begin(), prompt.end(), kBosToken);
  };
  accepted("/v1/chat/completions", chat(R"(,"add_special_tokens":true)"));
  EXPECT_EQ(count(), 1) << "the template's BOS stays the only one";
  engine.bos = "";
  accepted("/v1/chat/completions", chat(""));
  EXPECT_EQ(count(), 0) << "a template without BOS gets none";
  accepted("/v1/chat/completions", chat(R"(,"add_special_tokens":true)"));
  EXPECT_EQ(count(), 1);
  refused("/v1/completions", completion(R"(,"add_special_tokens":"yes")"), "add_special_tokens");
}

TEST_F(Requests, ToolsReachTheTemplate) {
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}}}])";
  accepted("/v1/chat/completions", chat(tools));
  EXPECT_EQ(engine.last_variables["tools"][0]["function"]["name"], "f");
  accepted("/v1/chat/completions", chat(tools + R"(,"tool_choice":"none")"));
  EXPECT_FALSE(engine.last_variables.contains("tools"));
  EXPECT_TRUE(accepted("/v1/chat/completions", chat(tools + R"(,"tool_choice":"required")")).allow != nullptr);
  refused("/v1/chat/completions", chat(R"(,"tools":[{"type":"function"}])"), "tools[0]");
  refused("/v1/chat/completions", chat(R"(,"tools":{})"), "tools");
  refused("/v1/chat/completions", chat(R"(,"tool_choice":"required")"), "tool_choice");
  refused("/v1/chat/completions", chat(tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})"),
          "tool_choice");
}

TEST_F(Requests, OutputFormats) {
  const std::string path = "/v1/chat/completions";
  EXPECT_TRUE(accepted(path, chat(R"(,"response_format":{"type":"json_object"})")).allow != nullptr);
  EXPECT_TRUE(accepted(path, chat(R"(,"response_format":{"type":"text"})")).allow == nullptr);
  EXPECT_TRUE(accepted(path, chat(R"(,"guided_choice":["yes","no"])")).allow != nullptr);
  const std::string message = refused(
      path,
      chat(R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"string","pattern":"a+"}}})"),
      "response_format");
  EXPECT_NE(message.find("not supported for keyword pattern"), std::string::npos) << message;
  refused(path, chat(R"(,"response_format":{"type":"xml"})"), "response_format.type");
  refused(path, chat(R"(,"response_format":"json")"), "response_format");
  refused(path, chat(R"(,"response_format":{"type":"json_schema"})"), "response_format.json_schema");
  refused(path, chat(R"(,"response_format":{"type":"json_object"},"ignore_eos":true)"), "ignore_eos");
  EXPECT_TRUE(accepted(path, chat(R"(,"structured_outputs":{"json_object":true})")).allow != nullptr);
  EXPECT_TRUE(accepted(path, chat(R"(,"structured_outputs":{"json_object":false})")).allow == nullptr);
  EXPECT_TRUE(accepted(path, chat(R"(,"structured_outputs":{"choice":["a"],"json_object":false})")).allow != nullptr);
  for (const std::string field : {"structural_tag", "regex", "grammar", "whitespace_pattern"})
    refused(path, chat(",\"structured_outputs\":{\"" + field + "\":\"x\"}"), "structured_outputs." + field);
}

TEST_F(Requests, OneOutputFormatInARequest) {
  const std::string path = "/v1/chat/completions";
  const std::string object = R"(,"response_format":{"type":"json_object"})";
  refused(path, chat(object + R"(,"guided_choice":["a"])"), "guided_choice");
  refused(path, chat(R"(,"guided_json":{},"guided_choice":["a"])"), "guided_choice");
  refused(path, chat(R"(,"structured_outputs":{"json":{},"choice":["a"]})"), "structured_outputs.choice");
  refused(path, chat(object + R"(,"structured_outputs":{"json":{}})"), "structured_outputs.json");
  accepted(path, chat(R"(,"response_format":{"type":"text"},"guided_choice":["a"])"));
  const std::string forced = R"(,"tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}])";
  refused(path, chat(object + forced), "response_format");
  refused(path, chat(R"(,"guided_choice":["a"])" + forced), "guided_choice");
  accepted(path, chat(R"(,"response_format":{"type":"text"})" + forced));
}

// A chain of references is followed only so far, however it is asked for.
TEST_F(Requests, SchemasWithoutEndAreRefused) {
  for (const int length : {10'000, 100'000}) {
    std::string defs;
    for (int i = 0; i < length; ++i) defs += fmt::format("\"a{}\":{{\"$ref\":\"#/$defs/a{}\"}},", i, i + 1);
    const std::string schema =
        "{\"$ref\":\"#/$defs/a0\",\"$defs\":{" + defs + fmt::format("\"a{}\":{{}}", length) + "}}";
    const std::string path = "/v1/chat/completions";
    refused(path, chat(R"(,"response_format":{"type":"json_schema","json_schema":{"schema":)" + schema + "}}"),
            "response_format");
    refused(path, chat(",\"guided_json\":" + schema), "guided_json");
    const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f","parameters":)" + schema + "}}]";
    refused(path, chat(tools + R"(,"tool_choice":"required")"), "tools");
    refused(path, chat(tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})"), "tools");
  }
}

TEST_F(Requests, SchemasWithTooManyBeginningsAreRefused) {
  Json schema;
  for (int list = 0; list < 5; ++list) {
    Json names = Json::array();
    for (int i = 0; i < 2000; ++i) names.push_back(list * 10'000 + i);
    schema["anyOf"].push_back({{"enum", std::move(names)}});
  }
  const std::string message =
      refused("/v1/completions", completion(",\"guided_json\":" + schema.dump()), "guided_json");
  EXPECT_NE(message.find("too complex"), std::string::npos) << message;
}

// References point into the schema of their own tool, whatever stands around it.
TEST_F(Requests, RequiredToolsWithReferences) {
  const std::string nested =
      R"({"$defs":{"Place":{"type":"object","properties":{"city":{"enum":["Rome"]}},"required":["city"],)"
      R"("additionalProperties":false}},"type":"object","properties":{"at":{"$ref":"#/$defs/Place"}},)"
      R"("required":["at"],"additionalProperties":false})";
  const std::string other =
      R"({"$defs":{"Place":{"enum":[7]}},"type":"object","properties":{"at":{"$ref":"#/$defs/Place"}},)"
      R"("required":["at"],"additionalProperties":false})";
  const auto tool = [](const std::string& name, const std::string& parameters) {
    return R"({"type":"function","function":{"name":")" + name + R"(","parameters":)" + parameters + "}}";
  };
  const GenerationRequest& request =
      accepted("/v1/chat/completions",
               chat(R"(,"tool_choice":"required","tools":[)" + tool("f", nested) + "," + tool("g", other) + "]"));
  const auto is_answer = [&](const std::string& text) {
    const auto filter = request.allow;
    std::vector<bool> allowed(engine.tokenizer().vocab_size());
    for (size_t i = 0; i <= text.size(); ++i) {
      filter(bytes_of(text.substr(0, i)), allowed);
      if (!allowed[i < text.size() ? static_cast<size_t>(static_cast<uint8_t>(text[i])) : size_t{kEndToken}])
        return false;
    }
    return true;
  };
  EXPECT_TRUE(is_answer(R"({"name":"f","arguments":{"at":{"city":"Rome"}}})"));
  EXPECT_TRUE(is_answer(R"({"name": "g", "arguments": {"at": 7}})"));
  EXPECT_FALSE(is_answer(R"({"name":"f","arguments":{"at":7}})"));
  EXPECT_FALSE(is_answer(R"({"name":"g","arguments":{"at":{"city":"Rome"}}})"));
}

}  // namespace
}  // namespace octavo
