// SseParser: server-sent events from bytes cut anywhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octavo {

class SseParser {
 public:
  // The data of the events that `bytes` completes, in order: the "data:" lines of an event joined by newlines. Lines
  // may end in LF, CRLF or CR; comments and other fields are skipped.
  std::vector<std::string> feed(std::string_view bytes);
  // An event or line longer than `kMaxEvent` bytes: the stream cannot be read on.
  bool too_long() const { return too_long_; }

  static constexpr size_t kMaxEvent = size_t{16} << 20;

 private:
  void end_line(std::vector<std::string>& events);
  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false, too_long_ = false;
};

}  // namespace octavo
