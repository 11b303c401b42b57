// octavo convert: a GGUF as a BF16 folder.
#include "checkpoint/convert.h"

#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace octavo {
namespace {

// tokenizer_config.json as hubs ship it.
std::string tokenizer_config(const ChatFormat& chat, int64_t context) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  const std::pair<const char*, const std::string*> tokens[] = {{"bos_token", &chat.bos_token},
                                                               {"eos_token", &chat.eos_token},
                                                               {"unk_token", &chat.unk_token},
                                                               {"pad_token", &chat.pad_token}};
  for (const auto& [key, token] : tokens)
    if (!token->empty()) config[key] = *token;
  config["add_prefix_space"] = false;
  config["clean_up_tokenization_spaces"] = false;
  config["model_max_length"] = context;
  if (!chat.template_source.empty()) config["chat_template"] = chat.template_source;
  return config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

class ConvertCommand final : public Command {
 public:
  std::string_view name() const override { return "convert"; }
  std::string_view group() const override { return "Make a model"; }
  std::string_view summary() const override { return "Write a GGUF as a BF16 folder (safetensors, config, tokenizer)"; }
  bool wants_json() const override { return output_.json; }

  void declare(Flags& flags) override {
    flags.argument("GGUF", gguf_, "The .gguf file");
    flags.argument("OUT", out_, "The folder to write (new or empty)");
    output_.declare(flags);
  }

  Result<void> run() override {
    // Text first: a tokenizer that cannot be converted is found before the weights are written.
    OCTAVO_ASSIGN(const Tokenizer tokenizer, Tokenizer::open(gguf_));
    OCTAVO_ASSIGN(const ChatFormat chat, read_chat_format(gguf_));
    OCTAVO_ASSIGN(ConvertSummary summary, convert_weights());
    OCTAVO_TRY(write_text_file(summary.folder.path() / "tokenizer.json", tokenizer.to_json()));
    OCTAVO_TRY(write_text_file(summary.folder.path() / "tokenizer_config.json",
                               tokenizer_config(chat, summary.config.context_length())));
    OCTAVO_TRY(summary.folder.finish());
    output_.json ? print_json(summary) : print(summary);
    return {};
  }

 private:
  Result<ConvertSummary> convert_weights() const {
    Progress progress("converting", output_.json);
    return convert_to_bf16_folder(gguf_, out_, [&](const ConvertProgress& p) {
      progress.update(static_cast<double>(p.bytes_done), static_cast<double>(p.bytes_total), p.tensor);
    });
  }

  void print(const ConvertSummary& s) const {
    std::string types;
    for (const auto& [type, count] : s.stored_types)
      types += fmt::format("{}{} {}", types.empty() ? "" : ", ", count, type);
    fmt::print("{}: {} tensors ({}), {:.1f} M parameters, {} -> {} BF16\n", out_, s.tensors, types,
               static_cast<double>(s.parameters) / 1e6, human_bytes(static_cast<double>(s.bytes_before)),
               human_bytes(static_cast<double>(s.bytes_after)));
  }

  void print_json(const ConvertSummary& s) const {
    Json types = Json::object();
    for (const auto& [type, count] : s.stored_types) types[type] = count;
    const Json out = {{"out", out_},
                      {"tensors", s.tensors},
                      {"parameters", s.parameters},
                      {"bytes_before", s.bytes_before},
                      {"bytes_after", s.bytes_after},
                      {"stored_types", types}};
    fmt::print("{}\n", out.dump(2));
  }

  std::string gguf_, out_;
  OutputOptions output_;
};

}  // namespace

std::unique_ptr<Command> make_convert_command() {
  return std::make_unique<ConvertCommand>();
}

}  // namespace octavo
