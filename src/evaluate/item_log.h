// ItemLog: a JSONL file that grows by one line per finished item, so that a run that was killed goes on where it was.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace octavo {

class ItemLog {
 public:
  // Opens PATH for going on, or begins it. Its first line is `identity`; another one there is an error that names what
  // differs. A line that was cut off is dropped. Error as well: another process has it open. Bytes of the identity that
  // are not UTF-8 (paths) are replaced, as in the file.
  static Result<ItemLog> open(const std::filesystem::path& path, const Json& identity);
  ~ItemLog();
  ItemLog(ItemLog&& other) noexcept
      : path_(std::move(other.path_)),
        fd_(std::exchange(other.fd_, -1)),
        done_(std::move(other.done_)),
        failure_(std::move(other.failure_)) {}
  ItemLog& operator=(ItemLog&&) = delete;

  const std::vector<Json>& done() const { return done_; }  // what the file held when it was opened
  // Adds a line for each record; they are on the disk when this returns.
  Result<void> append(const std::vector<Json>& records);
  // The error of a finished item that cannot be one of this run.
  Error refuse(const Json& record);
  // The error that append() or refuse() gave: the file's, not that of what was measured.
  const std::optional<Error>& failure() const { return failure_; }

 private:
  ItemLog() = default;
  std::filesystem::path path_;
  int fd_ = -1;
  std::vector<Json> done_;
  std::optional<Error> failure_;
};

// A name for texts: their hash, in hexadecimal.
std::string text_hash(const std::vector<std::string>& texts);

}  // namespace octavo
