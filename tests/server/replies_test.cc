// What clients get: bodies, streams, log-probabilities, tool calls, errors in the middle.
#include "fake_engine.h"

namespace octavo {
namespace {

using Replies = ApiFixture;

TEST_F(Replies, ChatInOnePiece) {
  const auto exchange = post("/v1/chat/completions", chat(""));
  engine.say(0, "Hel");
  EXPECT_FALSE(exchange->response);
  engine.say(0, "lo", "stop");
  ASSERT_TRUE(exchange->response);
  EXPECT_EQ(exchange->response->status, 200);
  EXPECT_EQ(exchange->response->content_type, "application/json");
  const Json json = exchange->json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "m");
  EXPECT_EQ(json["choices"].size(), 1u);
  EXPECT_EQ(json["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(json["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["choices"][0]["logprobs"], nullptr);
  const auto prompt = static_cast<int>(engine.requests[0].prompt.size());
  EXPECT_EQ(json["usage"]["prompt_tokens"], prompt);
  EXPECT_EQ(json["usage"]["completion_tokens"], 5);
  EXPECT_EQ(json["usage"]["total_tokens"], prompt + 5);
}

TEST_F(Replies, ChatStreamIsWhatClientsExpect) {
  const auto exchange = post("/v1/chat/completions", chat(R"(,"stream":true,"n":2,"logprobs":true)"));
  EXPECT_TRUE(exchange->streaming);
  engine.say(0, "a");
  engine.say(1, "x", "length");
  engine.say(0, "", "stop");
  EXPECT_TRUE(exchange->finished);
  const std::vector<Json> events = exchange->events();
  EXPECT_EQ(events.back(), "[DONE]");
  std::map<int, std::string> text, reason;
  std::map<int, int> roles;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json& event = events[i];
    EXPECT_EQ(event["id"], events[0]["id"]);
    EXPECT_EQ(event["created"], events[0]["created"]);
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_FALSE(event.contains("usage"));
    ASSERT_EQ(event["choices"].size(), 1u);
    const Json& choice = event["choices"][0];
    const int index = choice["index"];
    EXPECT_EQ(reason.count(index), 0u) << "nothing after the finish_reason";
    if (choice["delta"].contains("role")) {
      EXPECT_TRUE(text[index].empty() && ++roles[index] == 1);
    }
    if (choice["delta"].contains("content")) text[index] += choice["delta"]["content"];
    if (!choice["finish_reason"].is_null()) reason[index] = choice["finish_reason"];
  }
  EXPECT_EQ(text[0], "a");
  EXPECT_EQ(text[1], "x");
  EXPECT_EQ(roles[0] + roles[1], 2);
  EXPECT_EQ(reason[0], "stop");
  EXPECT_EQ(reason[1], "length");
}

TEST_F(Replies, UsageInOneLastChunkOnlyWhereAskedFor) {
  for (const std::string path : {"/v1/chat/completions", "/v1/completions"}) {
    const std::string fields = R"(,"stream":true,"stream_options":{"include_usage":true})";
    const auto exchange = post(path, path == "/v1/completions" ? completion(fields) : chat(fields));
    engine.say(engine.requests.size() - 1, "abc", "stop");
    const std::vector<Json> events = exchange->events();
    ASSERT_GE(events.size(), 3u);
    const Json& last = events[events.size() - 2];
    EXPECT_TRUE(last["choices"].empty());
    EXPECT_EQ(last["usage"]["completion_tokens"], 3);
    for (size_t i = 0; i + 2 < events.size(); ++i) {
      EXPECT_EQ(events[i]["choices"].size(), 1u);
      EXPECT_TRUE(events[i]["usage"].is_null());
    }
  }
}

TEST_F(Replies, CompletionStream) {
  const auto exchange = post("/v1/completions", completion(R"(,"stream":true,"echo":true)"));
  engine.say(0, "c");
  engine.say(0, "d", "length");
  std::string text;
  int reasons = 0;
  for (const Json& event : exchange->events()) {
    if (event == "[DONE]") continue;
    EXPECT_EQ(event["object"], "text_completion");
    text += event["choices"][0]["text"];
    reasons += !event["choices"][0]["finish_reason"].is_null();
  }
  EXPECT_EQ(text, "abcd");
  EXPECT_EQ(reasons, 1);
}

TEST_F(Replies, ErrorInTheMiddleOfAStream) {
  const auto exchange = post("/v1/chat/completions", chat(R"(,"stream":true,"n":2)"));
  engine.say(0, "a");
  engine.send(1, {.error = Error{.what = "it broke"}}, "error");
  EXPECT_TRUE(exchange->finished);
  EXPECT_EQ(engine.cancelled, std::vector<RequestId>{1}) << "the other choice is of no use any more";
  const std::vector<Json> events = exchange->events();
  EXPECT_EQ(events[events.size() - 2]["error"]["message"], "it broke");
  EXPECT_EQ(exchange->sent.find("\"stop\""), std::string::npos);
  engine.say(0, "b", "stop");
  EXPECT_EQ(exchange->events().size(), events.size());
}

TEST_F(Replies, ErrorsBeforeAnAnswerHaveAStatus) {
  auto exchange = post("/v1/chat/completions", chat(""));
  engine.send(0, {.error = Error{.what = "it broke"}}, "error");
  EXPECT_EQ(exchange->response->status, 500);
  engine.queue = 2;
  exchange = post("/v1/completions", completion(R"(,"stream":true,"n":2)"));
  ASSERT_TRUE(exchange->response) << "no stream was begun";
  EXPECT_EQ(exchange->response->status, 429);
  EXPECT_EQ(engine.cancelled, std::vector<RequestId>{2});
  EXPECT_EQ(exchange->response->headers[0].first, "Retry-After");
}

TEST_F(Replies, GoneClientsAreCancelled) {
  const auto exchange = post("/v1/completions", completion(R"(,"stream":true,"n":3)"));
  engine.say(1, "a", "stop");
  exchange->leave();
  EXPECT_EQ(engine.cancelled, (std::vector<RequestId>{1, 3}));
  const size_t before = exchange->sent.size();
  engine.send(0, {}, "abort");
  engine.send(2, {}, "abort");
  EXPECT_EQ(exchange->sent.size(), before);
  EXPECT_NE(get("/metrics")->response->body.find("finished_reason=\"abort\"} 2"), std::string::npos);
}

TEST_F(Replies, BrokenBytesAreStrictJson) {
  const auto exchange = post("/v1/chat/completions", chat(R"(,"logprobs":true,"top_logprobs":2)"));
  TokenEvent event{.tokens = {0xF0, 0x9F}, .text = "\xEF\xBF\xBD"};
  engine.send(0, event, "length");
  const Json entry = exchange->json()["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(entry["bytes"], Json({0xF0}));
  EXPECT_EQ(entry["token"], "\xEF\xBF\xBD");
  EXPECT_EQ(entry["logprob"], -0.5);
  EXPECT_EQ(entry["top_logprobs"].size(), 2u);
  EXPECT_EQ(entry["top_logprobs"][1]["logprob"], -9999.0) << "an impossible token has a finite value";
}

TEST_F(Replies, LogprobsWithoutTopHaveAnEmptyList) {
  const auto exchange = post("/v1/chat/completions", chat(R"(,"logprobs":true)"));
  engine.say(0, "a", "stop");
  const Json content = exchange->json()["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 1u);
  EXPECT_EQ(content[0]["top_logprobs"], Json::array());
}

// What lm-eval reads: arrays of prompt and answer, and the best token's value found among the top ones.
TEST_F(Replies, EchoWithLogprobs) {
  for (const std::string max_tokens : {"1", "0"}) {
    engine.requests.clear();
    engine.sinks.clear();
    engine.told.clear();
    const std::string head =
        R"({"prompt":["<bos>\u00e9","xy"],"echo":true,"logprobs":1,"temperature":0,"seed":1234,"max_tokens":)";
    const auto exchange = post("/v1/completions", head + max_tokens + "}");
    ASSERT_EQ(engine.requests.size(), 2u);
    const std::string answer = max_tokens == "1" ? "c" : "";
    engine.say(1, answer, "length");
    engine.say(0, answer, "length");
    const Json choices = exchange->json()["choices"];
    ASSERT_EQ(choices.size(), 2u);
    EXPECT_EQ(choices[0]["index"], 0);
    EXPECT_EQ(choices[0]["text"], "<bos>\u00e9" + answer);
    EXPECT_EQ(choices[1]["text"], "xy" + answer);
    const Json& logprobs = choices[0]["logprobs"];
    const size_t count = 3 + answer.size();
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
      EXPECT_EQ(logprobs[list].size(), count) << list;
    EXPECT_EQ(logprobs["token_logprobs"][0], nullptr);
    EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
    EXPECT_EQ(logprobs["tokens"][1], "bytes:\\xc3");
    EXPECT_EQ(logprobs["token_logprobs"][1], -1.5);
    EXPECT_TRUE(logprobs["top_logprobs"][1].contains("bytes:\\xc3"));
    EXPECT_EQ(logprobs["text_offset"][0], 0);
    EXPECT_EQ(logprobs["text_offset"][1], 5);
    EXPECT_EQ(logprobs["text_offset"][2], 5) << "the second byte of a character begins where the character does";
    if (!answer.empty()) {
      EXPECT_EQ(logprobs["text_offset"][3], 6);
    }
    EXPECT_EQ(choices[1]["logprobs"]["text_offset"][1], 0) << "an added BOS is no part of the text";
    EXPECT_EQ(exchange->json()["usage"]["completion_tokens"], 2 * answer.size());
  }
}

TEST_F(Replies, StopStringsStayWhereAskedFor) {
  const auto exchange = post("/v1/completions", completion(R"(,"stop":["END"],"include_stop_str_in_output":true)"));
  engine.send(0, {.tokens = {'a'}, .text = "a", .stop_match = "END"}, "stop");
  EXPECT_EQ(exchange->json()["choices"][0]["text"], "aEND");
}

TEST_F(Replies, WhatStoppedAnAnswerIsTold) {
  const auto stop_reason = [&](TokenEvent event, const std::string& reason, const std::string& fields) {
    Json out;
    for (const std::string path : {"/v1/completions", "/v1/chat/completions"})
      for (const bool stream : {false, true}) {
        const std::string more = fields + (stream ? R"(,"stream":true)" : "");
        const auto exchange = post(path, path == "/v1/completions" ? completion(more) : chat(more));
        engine.send(engine.requests.size() - 1, event, reason);
        Json choice;
        if (stream) {
          const std::vector<Json> events = exchange->events();
          choice = events[events.size() - 2]["choices"][0];
        } else {
          choice = exchange->json()["choices"][0];
        }
        EXPECT_TRUE(choice.contains("stop_reason"));
        EXPECT_TRUE(out.is_null() || out == choice["stop_reason"]) << path << stream;
        out = choice["stop_reason"];
      }
    return out;
  };
  const TokenEvent plain{.tokens = {'a'}, .text = "a"};
  EXPECT_EQ(stop_reason(plain, "length", ""), nullptr);
  TokenEvent event = plain;
  event.stop_match = "END";
  EXPECT_EQ(stop_reason(event, "stop", R"(,"stop":["END"])"), "END");
  event = plain;
  event.end_token = kEndToken;
  EXPECT_EQ(stop_reason(event, "stop", ""), nullptr);
  EXPECT_EQ(stop_reason(event, "stop", R"(,"ignore_eos":true,"stop_token_ids":[257])"), kEndToken);
  event.end_token = 'x';
  EXPECT_EQ(stop_reason(event, "stop", R"(,"stop_token_ids":[120])"), 'x');
}

TEST_F(Replies, TokenIdsWhereAskedFor) {
  const std::string fields = R"(,"return_token_ids":true,"return_tokens_as_token_ids":true,"logprobs":)";
  for (const bool is_chat : {false, true}) {
    const std::string path = is_chat ? "/v1/chat/completions" : "/v1/completions";
    const auto body = [&](const std::string& more) {
      return is_chat ? chat(fields + "true" + more) : completion(fields + "1" + more);
    };
    auto exchange = post(path, body(""));
    engine.say(engine.requests.size() - 1, "xy", "stop");
    Json json = exchange->json();
    Json choice = json["choices"][0];
    EXPECT_EQ(choice["token_ids"], Json({'x', 'y'}));
    EXPECT_EQ((is_chat ? json : choice)["prompt_token_ids"], Json(engine.requests.back().prompt));
    if (is_chat) {
      EXPECT_EQ(choice["logprobs"]["content"][0]["token"], "token_id:120");
      EXPECT_EQ(choice["logprobs"]["content"][0]["bytes"], Json({120}));
    } else {
      EXPECT_EQ(choice["logprobs"]["tokens"], Json({"token_id:120", "token_id:121"}));
      EXPECT_TRUE(choice["logprobs"]["top_logprobs"][0].contains("token_id:120"));
    }
    exchange = post(path, body(R"(,"stream":true)"));
    engine.send(engine.requests.size() - 1, {.tokens = {0xC3}});  // half a character: a token without text
    engine.say(engine.requests.size() - 1, "y", "stop");
    Json ids = Json::array(), prompt;
    for (const Json& event : exchange->events()) {
      if (event == "[DONE]") continue;
      const Json& told = is_chat ? event : event["choices"][0];
      if (told.contains("prompt_token_ids")) prompt = told["prompt_token_ids"];
      if (event["choices"][0].contains("token_ids"))
        for (const Json& id : event["choices"][0]["token_ids"]) ids.push_back(id);
    }
    EXPECT_EQ(ids, Json({0xC3, 'y'}));
    EXPECT_EQ(prompt, Json(engine.requests.back().prompt));
  }
  const auto exchange = post("/v1/completions", completion(""));
  engine.say(engine.requests.size() - 1, "x", "stop");
  EXPECT_FALSE(exchange->json()["choices"][0].contains("token_ids"));
}

TEST_F(Replies, AnEmptyPromptIsEchoed) {
  const auto exchange = post("/v1/completions", R"({"prompt":"","echo":true,"logprobs":0})");
  EXPECT_EQ(engine.requests[0].prompt, std::vector<TokenId>{kBosToken});
  engine.say(0, "cd", "stop");
  const Json choice = exchange->json()["choices"][0];
  EXPECT_EQ(choice["text"], "cd");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"<bos>", "c", "d"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 0, 1}));
}

TEST_F(Replies, AFormatThatCannotBeFollowedIsTheClientsFault) {
  const auto exchange = post("/v1/chat/completions", chat(R"(,"response_format":{"type":"json_object"})"));
  const Error error{.what = "the filter of a request failed", .found = GrammarTooComplex("because").what()};
  engine.send(0, {.error = error}, "error");
  ASSERT_TRUE(exchange->response);
  EXPECT_EQ(exchange->response->status, 400);
  EXPECT_NE(exchange->response->body.find("too complex for constrained decoding: because"), std::string::npos);
}

TEST_F(Replies, AtTheDeadlineEverybodyIsToldSo) {
  const auto stream = post("/v1/chat/completions", chat(R"(,"stream":true)"));
  const auto plain = post("/v1/completions", completion(""));
  const auto done = post("/v1/completions", completion(""));
  engine.say(0, "a");
  engine.say(2, "a", "stop");
  api.set_draining();
  api.abandon_all();
  EXPECT_EQ(engine.cancelled, (std::vector<RequestId>{1, 2}));
  EXPECT_TRUE(stream->finished);
  const std::vector<Json> events = stream->events();
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(events[events.size() - 2]["error"]["message"], "The server is shutting down");
  ASSERT_TRUE(plain->response);
  EXPECT_EQ(plain->response->status, 503);
  EXPECT_EQ(done->response->status, 200);
  engine.send(0, {}, "abort");
  engine.send(1, {}, "abort");
}

struct ToolReplies : ApiFixture {
  std::string tools(const std::string& more) {
    return chat(
        R"(,"tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}}}])" +
        more);
  }
};

TEST_F(ToolReplies, TaggedCalls) {
  const auto exchange = post("/v1/chat/completions", tools(""));
  engine.say(0, "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 1}}\n</tool_call>\n", "stop");
  const Json choice = exchange->json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Let me see.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "add");
  EXPECT_EQ(Json::parse(choice["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>()),
            Json({{"x", 1}}));
}

TEST_F(ToolReplies, TaggedCallsStreamByteByByte) {
  const auto exchange = post("/v1/chat/completions", tools(R"(,"stream":true)"));
  for (const char c : std::string("a <b> "
                                  "<tool_call>{\"name\":\"add\",\"arguments\":{\"x\":1}}</"
                                  "tool_call><tool_call>{\"name\":\"add\",\"arguments\":{\"x\":2}}</tool_call>"))
    engine.say(0, std::string(1, c));
  engine.say(0, "", "stop");
  std::string text, reason;
  std::vector<Json> calls;
  for (const Json& event : exchange->events()) {
    if (event == "[DONE]") continue;
    const Json& choice = event["choices"][0];
    if (choice["delta"].contains("content")) text += choice["delta"]["content"];
    if (choice["delta"].contains("tool_calls")) calls.push_back(choice["delta"]["tool_calls"][0]);
    if (!choice["finish_reason"].is_null()) reason = choice["finish_reason"];
  }
  EXPECT_EQ(text, "a <b>");
  EXPECT_EQ(reason, "tool_calls");
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[1]["index"], 1);
  EXPECT_EQ(calls[1]["function"]["arguments"], "{\"x\":2}");
}

TEST_F(ToolReplies, OneCallWhereNoMoreAreWanted) {
  const std::string two =
      "<tool_call>{\"name\":\"add\",\"arguments\":{\"x\":1}}</tool_call>"
      "<tool_call>{\"name\":\"add\",\"arguments\":{\"x\":2}}</tool_call>";
  for (const auto& [field, count] : std::map<std::string, size_t>{
           {"", 2}, {R"(,"parallel_tool_calls":true)", 2}, {R"(,"parallel_tool_calls":false)", 1}}) {
    const auto exchange = post("/v1/chat/completions", tools(field));
    engine.say(engine.requests.size() - 1, two, "stop");
    const Json message = exchange->json()["choices"][0]["message"];
    ASSERT_EQ(message["tool_calls"].size(), count) << field;
    EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], "{\"x\":1}");
    EXPECT_EQ(message["content"], nullptr);
  }
  refused("/v1/chat/completions", tools(R"(,"parallel_tool_calls":1)"), "parallel_tool_calls");
}

TEST_F(ToolReplies, BareJsonCallsAndWhatIsNone) {
  const std::map<std::string, bool> answers = {{R"({"name": "add", "parameters": {"x": 3}})", true},
                                               {R"({"name": "other", "parameters": {}})", false},
                                               {R"({"name": "add", )", false},
                                               {"<tool_call>{\"name\":\"other\"}</tool_call>", false},
                                               {"<tool_call", false},
                                               {"plain { text", false}};
  for (const auto& [text, is_call] : answers) {
    const auto exchange = post("/v1/chat/completions", tools(""));
    engine.say(engine.requests.size() - 1, text, "stop");
    const Json choice = exchange->json()["choices"][0];
    EXPECT_EQ(choice["message"].contains("tool_calls"), is_call) << text;
    EXPECT_EQ(choice["finish_reason"], is_call ? "tool_calls" : "stop");
    if (!is_call) {
      EXPECT_EQ(choice["message"]["content"], text);
    }
  }
}

TEST_F(ToolReplies, ANamedFunctionGetsItsArguments) {
  const auto exchange =
      post("/v1/chat/completions", tools(R"(,"tool_choice":{"type":"function","function":{"name":"add"}})"));
  ASSERT_TRUE(engine.requests[0].allow);
  engine.say(0, "{\"x\":4}", "stop");
  const Json message = exchange->json()["choices"][0]["message"];
  EXPECT_EQ(message["content"], nullptr);
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], "{\"x\":4}");
}

}  // namespace
}  // namespace octavo
