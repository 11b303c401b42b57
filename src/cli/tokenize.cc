// octavo tokenize: ids and pieces of a text.
#include <fmt/format.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "text/tokenizer.h"

namespace octavo {
namespace {

class TokenizeCommand final : public Command {
 public:
  std::string_view name() const override { return "tokenize"; }
  std::string_view group() const override { return "Look inside"; }
  std::string_view summary() const override { return "Token ids and pieces of a text"; }
  bool wants_json() const override { return output_.json; }

  void declare(Flags& flags) override {
    flags.argument("MODEL", model_, "A model folder or a .gguf file");
    flags.argument("TEXT", text_, "The text");
    flags.flag("special", special_, "Add the special tokens that the tokenizer's post-processor adds (BOS)");
    machine_.declare(flags);
    output_.declare(flags);
  }

  Result<void> run() override {
    ModelOptions checked;
    OCTAVO_TRY(machine_.apply(checked));
    OCTAVO_ASSIGN(const Tokenizer tokenizer, Tokenizer::open(model_));
    const std::vector<TokenId> ids = tokenizer.encode(text_, special_);
    if (output_.json) {
      Json out = {{"ids", ids}, {"pieces", Json::array()}};
      for (const TokenId id : ids) out["pieces"].push_back(tokenizer.token_piece(id));
      fmt::print("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
      return {};
    }
    Table table({"id", "piece"});
    table.align_left(1);
    for (const TokenId id : ids) table.add({std::to_string(id), tokenizer.token_piece(id)});
    fmt::print("{}{} tokens\n", table.text(), ids.size());
    return {};
  }

 private:
  std::string model_, text_;
  bool special_ = false;
  MachineOptions machine_;
  OutputOptions output_;
};

}  // namespace

std::unique_ptr<Command> make_tokenize_command() {
  return std::make_unique<TokenizeCommand>();
}

}  // namespace octavo
