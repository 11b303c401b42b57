#include "base/json.h"

#include <fmt/format.h>

#include <unordered_set>
#include <vector>

namespace octavo {
namespace {

// Builds the value while the text is parsed. The library's own builder looks through a whole object at every key, as
// its objects are lists: a request of a million keys would take hours.
class DocumentBuilder final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(int64_t value) override { return put(value); }
  bool number_unsigned(uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string&) override { return put(value); }
  bool string(std::string& value) override { return put(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override {
    open_.push_back(place(Json::object()));
    keys_.emplace_back();
    return true;
  }
  bool key(std::string& name) override {
    if (!keys_.back().insert(name).second && duplicate_.empty()) duplicate_ = name;
    key_ = std::move(name);
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }
  bool start_array(size_t) override {
    open_.push_back(place(Json::array()));
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    error_ = error.what();
    return false;
  }

  const std::string& error() const { return error_; }
  const std::string& duplicate() const { return duplicate_; }  // the first key that an object has twice
  Json take() { return std::move(root_); }

 private:
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  // A container that is open stays where it is: what holds it grows only when it is closed.
  Json* place(Json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    auto& members = static_cast<Json::object_t::Container&>(parent.get_ref<Json::object_t&>());
    return &members.emplace_back(std::move(key_), std::move(value)).second;
  }

  Json root_;
  std::vector<Json*> open_;
  std::vector<std::unordered_set<std::string>> keys_;
  std::string key_, duplicate_, error_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view where, JsonLimits limits) {
  if (text.size() > limits.max_bytes)
    return fail({.what = "JSON text is too large",
                 .where = std::string(where),
                 .found = fmt::format("{} bytes", text.size()),
                 .expected = fmt::format("at most {} bytes", limits.max_bytes)});
  // Depth is checked before the parser sees the text: nlohmann's values are destroyed and copied by recursion.
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limits.max_depth)
        return fail({.what = "JSON is nested too deeply",
                     .where = fmt::format("{}, byte {}", where, i),
                     .expected = fmt::format("at most {} levels", limits.max_depth)});
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  DocumentBuilder builder;
  if (!Json::sax_parse(text, &builder))
    return fail({.what = "not valid JSON", .where = std::string(where), .found = builder.error()});
  if (!builder.duplicate().empty())
    return fail(
        {.what = "JSON object has the same key twice", .where = std::string(where), .found = builder.duplicate()});
  return builder.take();
}

}  // namespace octavo
