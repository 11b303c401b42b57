// Typed access to the objects of a quantization_config, and the parts that both dialects share.
#include <fmt/format.h>

#include <charconv>

#include "checkpoint/dialect_rules.h"

namespace octavo {
namespace {

constexpr int64_t kMaxBlock = 65536;

std::string shorten(std::string text) {
  if (text.size() <= 80) return text;
  return text.substr(0, 77) + "...";
}

}  // namespace

tl::unexpected<Error> json_fail(std::string_view what, std::string_view path, std::string_view key, const Json* value,
                                std::string_view expected) {
  return fail({.what = std::string(what),
               .where = fmt::format("{}.{}", path, key),
               .found = value == nullptr ? "nothing" : shorten(value->dump(-1, ' ', true)),
               .expected = std::string(expected)});
}

const Json* json_find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Result<std::optional<std::string>> json_text(const Json& object, std::string_view key, std::string_view path) {
  const Json* value = json_find(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return json_fail("wrong type in config.json", path, key, value, "a string");
  return value->get_ref<const std::string&>();
}

Result<std::optional<bool>> json_bool(const Json& object, std::string_view key, std::string_view path) {
  const Json* value = json_find(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return json_fail("wrong type in config.json", path, key, value, "true or false");
  return value->get<bool>();
}

Result<std::optional<int64_t>> json_integer(const Json& object, std::string_view key, std::string_view path) {
  const Json* value = json_find(object, key);
  if (value == nullptr) return std::nullopt;
  const bool fits =
      value->is_number_integer() && (!value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t{INT64_MAX});
  if (!fits) return json_fail("wrong type in config.json", path, key, value, "an integer");
  return value->get<int64_t>();
}

Result<std::vector<std::string>> json_texts(const Json& object, std::string_view key, std::string_view path) {
  std::vector<std::string> texts;
  const Json* value = json_find(object, key);
  if (value == nullptr) return texts;
  if (!value->is_array()) return json_fail("wrong type in config.json", path, key, value, "a list of strings");
  for (const Json& item : *value) {
    if (!item.is_string()) return json_fail("wrong type in config.json", path, key, &item, "a list of strings");
    texts.push_back(item.get_ref<const std::string&>());
  }
  return texts;
}

Result<std::optional<std::pair<int, int>>> json_block(const Json& object, std::string_view key, std::string_view path) {
  const Json* value = json_find(object, key);
  if (value == nullptr) return std::nullopt;
  int64_t rows = 0, cols = 0;
  if (value->is_array() && value->size() == 2 && (*value)[0].is_number_integer() && (*value)[1].is_number_integer()) {
    rows = (*value)[0].get<int64_t>();
    cols = (*value)[1].get<int64_t>();
  } else if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    const char* end = text.data() + text.size();
    const auto first = std::from_chars(text.data(), end, rows);
    if (first.ec == std::errc() && first.ptr != end && *first.ptr == 'x') {
      const auto second = std::from_chars(first.ptr + 1, end, cols);
      if (second.ec != std::errc() || second.ptr != end) cols = 0;
    }
  }
  if (rows < 1 || cols < 1 || rows > kMaxBlock || cols > kMaxBlock)
    return json_fail("bad block size", path, key, value, "two integers from 1 to 65536, such as [128, 128]");
  return std::pair<int, int>(static_cast<int>(rows), static_cast<int>(cols));
}

Result<std::optional<KvRule>> read_kv_cache_scheme(const Json& config) {
  const Json* scheme = json_find(config, "kv_cache_scheme");
  if (scheme == nullptr) return std::nullopt;
  if (!scheme->is_object())
    return json_fail("KV cache scheme is not supported", kConfigPath, "kv_cache_scheme", scheme,
                     "an object with num_bits 8 and type float or int");
  const std::string path = "quantization_config.kv_cache_scheme";
  OCTAVO_ASSIGN(const auto bits, json_integer(*scheme, "num_bits", path));
  OCTAVO_ASSIGN(const auto type, json_text(*scheme, "type", path));
  OCTAVO_ASSIGN(const auto symmetric, json_bool(*scheme, "symmetric", path));
  OCTAVO_ASSIGN(const auto strategy, json_text(*scheme, "strategy", path));
  if (bits.value_or(8) != 8)
    return json_fail("KV cache scheme is not supported", path, "num_bits", json_find(*scheme, "num_bits"), "8");
  if (!symmetric.value_or(true))
    return json_fail("KV cache scheme is not supported", path, "symmetric", json_find(*scheme, "symmetric"), "true");
  KvRule rule;
  if (type.value_or("float") == "int")
    rule.element = ElementType::kInt8;
  else if (type.value_or("float") != "float")
    return json_fail("KV cache scheme is not supported", path, "type", json_find(*scheme, "type"), "float or int");
  const std::string how = strategy.value_or("tensor");
  if (how != "tensor" && how != "attn_head" && how != "token")
    return json_fail("KV cache scheme is not supported", path, "strategy", json_find(*scheme, "strategy"),
                     "tensor, attn_head or token");
  OCTAVO_ASSIGN(const auto dynamic, json_bool(*scheme, "dynamic", path));
  rule.stored = !dynamic.value_or(how == "token");
  return rule;
}

bool covers_some_tensor(const TensorReader& tensors, FunctionRef<bool(std::string_view)> covers) {
  for (const TensorEntry& entry : tensors.entries()) {
    const std::string_view name = entry.name;
    const size_t dot = name.rfind('.');
    if (covers(dot == std::string_view::npos ? name : name.substr(0, dot))) return true;
  }
  return false;
}

}  // namespace octavo
