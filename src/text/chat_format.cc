// Where models keep their chat template and special tokens.
#include <fmt/format.h>

#include "base/file.h"
#include "checkpoint/gguf.h"
#include "text/chat_template.h"

namespace octavo {
namespace {

constexpr size_t kMaxTemplateFile = size_t{4} << 20, kMaxConfigFile = size_t{64} << 20;

// A special token is a string, an object with its "content", or null.
Result<std::string> special_token(const Json& config, const char* key, const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object()) {
    const auto content = found->find("content");
    if (content != found->end() && content->is_string()) return content->get<std::string>();
  }
  return fail({.what = fmt::format("{} is not a token", key),
               .where = where,
               .found = std::string(found->type_name()),
               .expected = "a string, or an object with a string `content`"});
}

// `chat_template` is a string, or a list of {name, template} of which "default" is meant.
Result<std::string> template_in(const Json& config, const std::string& where) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  std::string names;
  if (found->is_array()) {
    for (const Json& entry : *found) {
      if (!entry.is_object()) continue;
      const auto name = entry.find("name"), text = entry.find("template");
      if (name == entry.end() || text == entry.end() || !name->is_string() || !text->is_string()) continue;
      if (*name == "default") return text->get<std::string>();
      names += (names.empty() ? "" : ", ") + name->get<std::string>();
    }
  }
  return fail({.what = "chat_template has no usable template",
               .where = where,
               .found = names.empty() ? std::string(found->type_name()) : "templates named " + names,
               .expected = "a string, or a list with {\"name\": \"default\", \"template\": ...}"});
}

Result<ChatFormat> from_folder(const std::filesystem::path& folder) {
  ChatFormat format;
  std::error_code ignored;
  const std::filesystem::path template_file = folder / "chat_template.jinja",
                              config_file = folder / "tokenizer_config.json";
  const bool has_template_file = std::filesystem::exists(template_file, ignored);
  if (has_template_file) {
    OCTAVO_ASSIGN(format.template_source, read_text_file(template_file, kMaxTemplateFile));
  }
  if (!std::filesystem::exists(config_file, ignored)) return format;
  const std::string where = config_file.string();
  OCTAVO_ASSIGN(const std::string text, read_text_file(config_file, kMaxConfigFile));
  OCTAVO_ASSIGN(const Json config, parse_json(text, where));
  if (!config.is_object()) return fail({.what = "not a JSON object", .where = where});
  if (!has_template_file) {
    OCTAVO_ASSIGN(format.template_source, template_in(config, where));
  }
  OCTAVO_ASSIGN(format.bos_token, special_token(config, "bos_token", where));
  OCTAVO_ASSIGN(format.eos_token, special_token(config, "eos_token", where));
  OCTAVO_ASSIGN(format.pad_token, special_token(config, "pad_token", where));
  OCTAVO_ASSIGN(format.unk_token, special_token(config, "unk_token", where));
  return format;
}

// The token whose id the metadata gives under `key`; empty without one.
Result<std::string> token_of(const Gguf& gguf, const std::string& key) {
  const auto id = gguf.integer(key);
  const std::vector<std::string>* tokens = gguf.texts("tokenizer.ggml.tokens");
  if (!id || tokens == nullptr) return std::string();
  if (*id < 0 || static_cast<uint64_t>(*id) >= tokens->size())
    return fail({.what = "token id is outside of the vocabulary",
                 .where = gguf.path().string() + ", " + key,
                 .found = fmt::format("{}", *id),
                 .expected = fmt::format("0 to {}", tokens->size() - 1)});
  return (*tokens)[static_cast<size_t>(*id)];
}

Result<ChatFormat> from_gguf(const std::filesystem::path& file) {
  OCTAVO_ASSIGN(const Gguf gguf, Gguf::open(file));
  ChatFormat format;
  format.template_source = gguf.text("tokenizer.chat_template").value_or("");
  OCTAVO_ASSIGN(format.bos_token, token_of(gguf, "tokenizer.ggml.bos_token_id"));
  OCTAVO_ASSIGN(format.eos_token, token_of(gguf, "tokenizer.ggml.eos_token_id"));
  OCTAVO_ASSIGN(format.pad_token, token_of(gguf, "tokenizer.ggml.padding_token_id"));
  OCTAVO_ASSIGN(format.unk_token, token_of(gguf, "tokenizer.ggml.unknown_token_id"));
  return format;
}

}  // namespace

Result<ChatFormat> read_chat_format(const std::filesystem::path& model) {
  std::error_code ignored;
  if (std::filesystem::is_directory(model, ignored)) return from_folder(model);
  if (std::filesystem::is_regular_file(model, ignored)) return from_gguf(model);
  return fail({.what = "no such model",
               .where = model.string(),
               .expected = "a model folder or a .gguf file",
               .remedy = "check the path"});
}

}  // namespace octavo
