#include "evaluate/item_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file.h"

namespace octavo {
namespace {

tl::unexpected<Error> system_error(const std::filesystem::path& path, std::string what) {
  return fail({.what = std::move(what), .where = path.string(), .found = std::strerror(errno)});
}

std::string line_of(const Json& record) {
  return record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The whole lines of `text` that are JSON; `kept` is the bytes they take.
Result<std::vector<Json>> whole_lines(const std::string& text, const std::filesystem::path& path, size_t& kept) {
  std::vector<Json> lines;
  kept = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', kept)) {
    auto line = parse_json(std::string_view(text).substr(kept, end - kept),
                           fmt::format("{}, line {}", path.string(), lines.size() + 1));
    if (!line) {
      if (end + 1 == text.size()) break;  // the last line: written while the machine went down
      return fail(std::move(line).error());
    }
    lines.push_back(std::move(*line));
    kept = end + 1;
  }
  return lines;
}

Result<void> check_identity(const Json& found, const Json& expected, const std::filesystem::path& path) {
  if (found == expected) return {};
  std::string key = "the first line";
  for (const auto& [name, value] : expected.items())
    if (!found.is_object() || found.find(name) == found.end() || found[name] != value) {
      key = fmt::format("\"{}\"", name);
      break;
    }
  const bool named = found.is_object() && key.front() == '"' && found.contains(key.substr(1, key.size() - 2));
  return fail({.what = fmt::format("the file is of another run: {} differs", key),
               .where = path.string(),
               .found = named ? found[key.substr(1, key.size() - 2)].dump() : "",
               .expected = key.front() == '"' ? expected[key.substr(1, key.size() - 2)].dump() : expected.dump(),
               .remedy = "give --resume another file"});
}

}  // namespace

Result<ItemLog> ItemLog::open(const std::filesystem::path& path, const Json& given) {
  const std::string first_line = line_of(given);
  OCTAVO_ASSIGN(const Json identity, parse_json(first_line, path.string()));  // as it will stand in the file
  ItemLog log;
  log.path_ = path;
  log.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log.fd_ < 0) return system_error(path, "cannot open the file of finished items");
  if (flock(log.fd_, LOCK_EX | LOCK_NB) != 0)
    return fail({.what = "another run is writing this file", .where = path.string(), .remedy = "wait for it to end"});
  OCTAVO_ASSIGN(const std::string text, read_text_file(path));
  size_t kept = 0;
  OCTAVO_ASSIGN(std::vector<Json> lines, whole_lines(text, path, kept));
  if (lines.empty() && !first_line.starts_with(text))  // not even a beginning of our first line
    return fail({.what = "the file is not one of finished items", .where = path.string()});
  if (kept < text.size() && ftruncate(log.fd_, static_cast<off_t>(kept)) != 0)
    return system_error(path, "cannot drop an unfinished line");
  if (lines.empty()) {
    OCTAVO_TRY(log.append({identity}));
    return log;
  }
  OCTAVO_TRY(check_identity(lines.front(), identity, path));
  log.done_.assign(std::make_move_iterator(lines.begin() + 1), std::make_move_iterator(lines.end()));
  return log;
}

ItemLog::~ItemLog() {
  if (fd_ >= 0) ::close(fd_);
}

Result<void> ItemLog::append(const std::vector<Json>& records) {
  std::string text;
  for (const Json& record : records) text += line_of(record);
  const auto failed = [this] {
    auto error = system_error(path_, "cannot write the file of finished items");
    failure_ = error.value();
    return error;
  };
  for (size_t begin = 0; begin < text.size();) {
    const ssize_t written = ::write(fd_, text.data() + begin, text.size() - begin);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed();
    begin += static_cast<size_t>(written);
  }
  if (fdatasync(fd_) != 0) return failed();
  return {};
}

Error ItemLog::refuse(const Json& record) {
  failure_ = Error{.what = "a finished item is none of this run's",
                   .where = path_.string(),
                   .found = record.dump(),
                   .remedy = "remove the file to begin again"};
  return *failure_;
}

std::string text_hash(const std::vector<std::string>& texts) {
  uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a
  const auto add = [&](unsigned char byte) { hash = (hash ^ byte) * 0x100000001B3ull; };
  for (const std::string& text : texts) {
    for (const char c : text) add(static_cast<unsigned char>(c));
    add(0);
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace octavo
