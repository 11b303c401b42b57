// ReplyReader: an OpenAI server's streamed answer, read as it arrives, into a RequestRecord.
#pragma once

#include <string>
#include <string_view>

#include "loadgen/record.h"
#include "loadgen/sse.h"

namespace octavo {

// Reads /v1/completions and /v1/chat/completions alike. Whatever the server sends ends as a completed record or as one
// with an error that says what was wrong.
class ReplyReader {
 public:
  explicit ReplyReader(RequestRecord& record) : record_(record) {}

  void begin(int status, std::string_view content_type);
  // `now`: when the bytes arrived. False: nothing more is worth reading.
  bool feed(std::string_view bytes, double now);
  // The reply is over. `problem`: why the connection ended before the reply did, or empty.
  void end(std::string_view problem, double now);

 private:
  void read_event(const std::string& data, double now);
  void read_error_body();
  void fail(std::string reason);

  RequestRecord& record_;
  int status_ = 0;
  bool stream_ = false;
  bool started_ = false, finished_ = false;  // a chunk with text was seen; the answer's end was
  double last_text_ = 0;
  int64_t text_chunks_ = 0;
  std::string content_type_, body_;  // of a reply that is not a stream
  SseParser events_;
};

// What an error reply says: OpenAI's envelope and its relatives, else the beginning of the text. One line.
std::string error_message_of(std::string_view body);

}  // namespace octavo
