// Streams cut anywhere, errors in every shape, replies that are no streams.
#include "loadgen/reply_reader.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace octavo {
namespace {

std::string completion_chunk(const std::string& text, const std::string& finish = "null") {
  return R"(data: {"choices":[{"index":0,"text":")" + text + R"(","finish_reason":)" + finish + "}]}\n\n";
}
std::string chat_chunk(const std::string& delta, const std::string& finish = "null") {
  return R"(data: {"choices":[{"index":0,"delta":{)" + delta + R"(},"finish_reason":)" + finish +
         "}],\"usage\":null}\n\n";
}
const std::string kUsage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n";
const std::string kDone = "data: [DONE]\n\n";

RequestRecord read(const std::vector<std::string>& pieces, int status = 200,
                   const std::string& type = "text/event-stream; charset=utf-8", const std::string& problem = "") {
  RequestRecord record;
  ReplyReader reader(record);
  double now = 1;
  if (status != 0) reader.begin(status, type);
  for (const std::string& piece : pieces)
    if (!reader.feed(piece, now++)) break;
  reader.end(problem, now);
  return record;
}

TEST(SseParser, AnyCutAndAnyLineEnd) {
  const std::vector<std::string> expected = {"one", "two\nlines", "", " padded", "last"};
  const std::string lf =
      ": comment\n\nevent: x\ndata: one\nid: 4\n\n\n\ndata:two\ndata: lines\n\ndata\n\ndata:  padded\n\nretry: 5\n\n"
      "data: last\n\ndata: unfinished\n";
  for (const std::string& end : {std::string("\n"), std::string("\r\n"), std::string("\r")}) {
    std::string text;
    for (const char c : lf) text += c == '\n' ? end : std::string(1, c);
    SseParser whole;
    EXPECT_EQ(whole.feed(text), expected);
    Random random(end.size());
    for (int round = 0; round < 200; ++round) {
      SseParser parser;
      std::vector<std::string> events;
      for (size_t at = 0; at < text.size();) {
        const size_t size = 1 + random.below(round < 100 ? 3 : 40);
        for (std::string& event : parser.feed(std::string_view(text).substr(at, size)))
          events.push_back(std::move(event));
        at += size;
      }
      ASSERT_EQ(events, expected);
    }
  }
}

TEST(SseParser, EndlessLineIsGivenUp) {
  SseParser parser;
  const std::string piece(1 << 20, 'x');
  for (int i = 0; i < 20 && !parser.too_long(); ++i) EXPECT_TRUE(parser.feed(piece).empty());
  EXPECT_TRUE(parser.too_long());
}

TEST(ReplyReader, TimesAndCountsOfACompletion) {
  const RequestRecord record = read({completion_chunk("a"), ": ping\n\n", completion_chunk("bc"), completion_chunk("d"),
                                     completion_chunk("", "\"length\"") + kUsage + kDone});
  EXPECT_EQ(record.error, "");
  EXPECT_DOUBLE_EQ(record.first, 1);
  EXPECT_EQ(record.gaps, (std::vector<double>{2, 1}));
  EXPECT_DOUBLE_EQ(record.last, 5);
  EXPECT_TRUE(record.counted_by_server);
  EXPECT_EQ(record.prompt_tokens, 7);
  EXPECT_EQ(record.output_tokens, 3);
  EXPECT_DOUBLE_EQ(record.tpot(), 2);  // (5 - 1) / (3 - 1)
}

TEST(ReplyReader, TheRoleIsNoToken) {
  const RequestRecord record = read({chat_chunk(R"("role":"assistant","content":"")"), chat_chunk(R"("content":"hi")"),
                                     chat_chunk(R"("reasoning_content":"x")"), chat_chunk("", "\"stop\""), kDone});
  EXPECT_EQ(record.error, "");
  EXPECT_DOUBLE_EQ(record.first, 2);
  EXPECT_EQ(record.gaps.size(), 1u);
  EXPECT_FALSE(record.counted_by_server);
  EXPECT_EQ(record.output_tokens, 2);
}

TEST(ReplyReader, AnAnswerWithoutVisibleText) {
  const RequestRecord record = read({completion_chunk("", "\"stop\""), kUsage, kDone});
  EXPECT_EQ(record.error, "");
  EXPECT_DOUBLE_EQ(record.first, 1);
  EXPECT_DOUBLE_EQ(record.last, 1);
}

TEST(ReplyReader, SameRecordHoweverTheBytesAreCut) {
  const std::string text = chat_chunk(R"("role":"assistant")") + chat_chunk(R"("content":"\u00fc \"{}\" data: ")") +
                           chat_chunk(R"("content":"b")") + chat_chunk("", "\"stop\"") + kUsage + kDone;
  for (size_t cut = 1; cut < text.size(); ++cut) {
    const RequestRecord record = read({text.substr(0, cut), text.substr(cut)});
    ASSERT_EQ(record.error, "") << cut;
    ASSERT_EQ(record.output_tokens, 3);
    ASSERT_EQ(record.gaps.size(), 1u);
  }
}

TEST(ReplyReader, Failures) {
  const auto error_of = [](const RequestRecord& record) {
    EXPECT_FALSE(record.completed());
    return record.error;
  };
  const std::string envelope = R"({"error":{"message":"too\nlong","type":"x","param":null,"code":null}})";
  EXPECT_EQ(error_of(read({envelope.substr(0, 9), envelope.substr(9)}, 400, "application/json")), "HTTP 400: too long");
  EXPECT_EQ(error_of(read({R"({"error":"no such model"})"}, 404, "application/json")), "HTTP 404: no such model");
  EXPECT_EQ(error_of(read({R"({"detail":"Not Found"})"}, 404, "application/json")), "HTTP 404: Not Found");
  EXPECT_EQ(error_of(read({"<html>gone"}, 502, "text/html")), "HTTP 502: <html>gone");
  EXPECT_EQ(error_of(read({}, 500, "")), "HTTP 500: ");
  EXPECT_NE(error_of(read({R"({"choices":[{"text":"a"}]})"}, 200, "application/json")).find("not a stream"),
            std::string::npos);
  EXPECT_EQ(error_of(read({completion_chunk("a"), "data: " + envelope + "\n\n", completion_chunk("b", "\"stop\"")})),
            "the stream broke off with an error: too long");
  EXPECT_NE(error_of(read({completion_chunk("a"), "data: {oops\n\n"})).find("not JSON"), std::string::npos);
  EXPECT_EQ(error_of(read({completion_chunk("a")})), "the stream ended without finish_reason and [DONE]");
  EXPECT_EQ(error_of(read({completion_chunk("a")}, 200, "text/event-stream", "reading: closed")),
            "reading: closed in mid-stream");
  EXPECT_EQ(error_of(read({}, 0, "", "connecting: Connection refused")), "connecting: Connection refused");
  // What comes after the end of the answer takes nothing away from it.
  EXPECT_TRUE(read({completion_chunk("a", "\"stop\"")}, 200, "text/event-stream", "reading: closed").completed());
}

TEST(ReplyReader, HostileStreams) {
  const std::vector<std::string> chunks = {"[]",
                                           "1",
                                           "null",
                                           "\"x\"",
                                           "{\"choices\":{}}",
                                           "{\"choices\":[1]}",
                                           "{\"choices\":[{\"delta\":[]}]}",
                                           "{\"choices\":[{\"text\":5}]}",
                                           "{\"usage\":{\"prompt_tokens\":\"x\",\"completion_tokens\":-5}}",
                                           "{\"usage\":[]}",
                                           std::string(200, '['),
                                           "{\"error\":null}"};
  for (const std::string& chunk : chunks) {
    const RequestRecord record = read({"data: " + chunk + "\n\n" + completion_chunk("a", "\"stop\"") + kDone});
    EXPECT_GE(record.output_tokens, 0) << chunk;
  }
  Random random(9);
  for (int round = 0; round < 500; ++round) {
    std::string text = completion_chunk("a") + completion_chunk("b", "\"stop\"") + kUsage + kDone;
    for (int i = 0; i < 5; ++i) text[random.below(text.size())] = static_cast<char>(random.next());
    read({text});
  }
}

}  // namespace
}  // namespace octavo
