// JSON values as template values.
#include "text/jinja/from_json.h"

#include <limits>

#include "text/utf8.h"

namespace octavo::jinja {
namespace {

Value from_text(const std::string& text) {
  if (!octavo::is_valid_utf8(text)) raise("a text given to the chat template is not valid UTF-8");
  return Value::string(text);
}

Value convert(const Json& json, int depth) {
  if (depth > kMaxNesting) raise("a value given to the chat template is nested too deeply");
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const auto value = json.get<uint64_t>();
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        return Value::big_integer(std::to_string(value));
      return Value::integer(static_cast<int64_t>(value));
    }
    case Json::value_t::number_float:
      return Value::real(json.get<double>());
    case Json::value_t::string:
      return from_text(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(convert(item, depth + 1));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      dict.reserve(json.size());
      for (const auto& [key, value] : json.items()) dict.set(from_text(key), convert(value, depth + 1));
      return make_dict(std::move(dict));
    }
    default:
      return Value::none();
  }
}

}  // namespace

Value from_json(const Json& json) {
  return convert(json, 1);
}

}  // namespace octavo::jinja
