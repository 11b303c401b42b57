// ItemLog: a JSONL file that grows by one line per finished item, so that a run that was killed goes on where it was.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace octavo {

class ItemLog {
 public:
  // Opens PATH for going on, or begins it. Its first line is `identity`; another one there is an error that names what
  // differs. A line that was cut off is dropped. Error as well: another process has it open.
  static Result<ItemLog> open(const std::filesystem::path& path, const Json& identity);
  ~ItemLog();
  ItemLog(ItemLog&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), done_(std::move(other.done_)) {}
  ItemLog& operator=(ItemLog&&) = delete;

  const std::vector<Json>& done() const { return done_; }  // what the file held when it was opened
  // Adds a line for each record; they are on the disk when this returns.
  Result<void> append(const std::vector<Json>& records);

 private:
  ItemLog() = default;
  std::filesystem::path path_;
  int fd_ = -1;
  std::vector<Json> done_;
};

// A name for texts: their hash, in hexadecimal.
std::string text_hash(const std::vector<std::string>& texts);

}  // namespace octavo
