#include "text/spec_json.h"

#include <fmt/format.h>

#include "base/json.h"

namespace octavo {
namespace {

tl::unexpected<Error> wrong(std::string_view part, const char* key, const Json* value, std::string_view expected) {
  return fail({.what = fmt::format("\"{}\" is {}", key, value == nullptr ? "missing" : "of the wrong type"),
               .where = std::string(part),
               .found = value == nullptr ? "" : value->type_name(),
               .expected = std::string(expected)});
}

const Json* find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

}  // namespace

Result<std::string> type_of(const Json& object, std::string_view part) {
  return text_member(object, "type", part);
}

Result<std::string> text_member(const Json& object, const char* key, std::string_view part) {
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_string()) return wrong(part, key, value, "a string");
  return value->get<std::string>();
}

Result<bool> bool_member(const Json& object, const char* key, bool otherwise, std::string_view part) {
  const Json* value = find(object, key);
  if (value == nullptr || value->is_null()) return otherwise;
  if (!value->is_boolean()) return wrong(part, key, value, "true or false");
  return value->get<bool>();
}

Result<const Json*> array_member(const Json& object, const char* key, std::string_view part) {
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_array()) return wrong(part, key, value, "an array");
  return value;
}

tl::unexpected<Error> unsupported_part(std::string_view part, std::string_view found, std::string_view supported) {
  return fail({.what = fmt::format("{} of this tokenizer is not supported", part),
               .where = std::string(part),
               .found = std::string(found),
               .expected = std::string(supported)});
}

}  // namespace octavo
