// A small strict JSON reader for the two JSON texts of a safetensors checkpoint (a file's header, the shard index): one
// pass without a tree, so that a million entries cost little time and memory. Everything else uses base/json.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace octavo {

// Every method returns false at the first fault and leaves its description in error() and its byte in position().
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : text_(text) {}

  bool open(char bracket);              // '{' or '['
  bool next(char closing, bool& more);  // before each member: eats ',' or the closing bracket; more = a member follows
  bool key(std::string& out);           // "key" :
  bool string(std::string& out);        // decoded to UTF-8; invalid UTF-8 is a fault
  bool unsigned_integer(uint64_t& out);
  bool skip_value(int max_depth = 16);
  bool end();  // nothing but white space is left

  bool fail(std::string_view what);  // sets error(), returns false
  const std::string& error() const { return error_; }
  size_t position() const { return at_; }

 private:
  void skip_space();
  bool escape(std::string& out);
  bool hex4(uint32_t& out);
  bool utf8_sequence(std::string& out);

  std::string_view text_;
  size_t at_ = 0;
  bool first_ = false;  // no member of the innermost open container was read yet
  std::string error_;
};

}  // namespace octavo
