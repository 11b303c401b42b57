// octavo run: one answer, or a chat.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "engine/generate.h"

namespace octavo {
namespace {

class RunCommand final : public Command {
 public:
  std::string_view name() const override { return "run"; }
  std::string_view group() const override { return "Use a model"; }
  std::string_view summary() const override { return "Answer a prompt, or chat when none is given"; }
  bool wants_json() const override { return output_.json; }

  void declare(Flags& flags) override {
    model_.declare(flags);
    flags.group("Generation");
    flags.option("prompt", prompt_, "The user's message; without it, an interactive chat");
    flags.option("system", system_, "The system message");
    flags.flag("raw", raw_, "Give the prompt to the model as it is, without the chat template");
    flags.option("max-tokens", generate_.max_tokens, "Most tokens of one answer");
    flags.option("temperature", generate_.sampling.temperature, "0 is greedy");
    flags.option("top-p", generate_.sampling.top_p, "Sample among the most likely tokens that sum to this probability");
    flags.option("seed", seed_, "Seed of the sampling");
    greedy_head_.declare(flags);
    flags.group("Options");
    output_.declare(flags);
  }

  Result<void> run() override {
    generate_.sampling.seed = seed_;
    OCTAVO_TRY(check_sampling(generate_.sampling));
    if (generate_.max_tokens < 1)
      return fail({.what = "nothing to generate",
                   .where = "--max-tokens",
                   .found = fmt::format("{}", generate_.max_tokens),
                   .expected = "at least 1"});
    OCTAVO_ASSIGN(const std::unique_ptr<Model> model, model_.load(output_.json, true, !greedy_head_.off));
    PagePool kv = model->make_kv_cache(model->config().context_length());
    Sequence sequence(*model, kv);
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
    if (!prompt_.empty()) return answer(*model, sequence, prompt_);
    if (output_.json) return fail({.what = "--json needs a prompt", .where = "--prompt"});
    return chat(*model, sequence);
  }

 private:
  Result<std::vector<TokenId>> prompt_tokens(Model& model, const std::string& text) {
    if (raw_) return model.tokenizer().encode(text, true);
    messages_.push_back({{"role", "user"}, {"content", text}});
    OCTAVO_ASSIGN(const std::string rendered, model.render_chat(messages_));
    return model.tokenizer().encode(rendered, false);
  }

  Result<void> answer(Model& model, Sequence& sequence, const std::string& text) {
    OCTAVO_ASSIGN(const std::vector<TokenId> tokens, prompt_tokens(model, text));
    OCTAVO_ASSIGN(const GenerateResult result,
                  generate(model, sequence, tokens, generate_, [&](std::string_view piece) {
                    if (!output_.json) {
                      std::fwrite(piece.data(), 1, piece.size(), stdout);
                      std::fflush(stdout);
                    }
                    return true;
                  }));
    if (output_.json) {
      print_json(model, result);
      return {};
    }
    fmt::print("\n");
    std::fflush(stdout);
    fmt::print(stderr, "{} prompt tokens, {} generated ({}); TTFT {:.1f} ms, TPOT {:.2f} ms, {:.1f} tok/s\n",
               result.prompt_tokens, result.tokens.size(), result.finish_reason, result.first_token_seconds * 1e3,
               result.seconds_per_token * 1e3, result.seconds_per_token > 0 ? 1 / result.seconds_per_token : 0.0);
    tell_kv_clipped(model);
    if (!raw_) messages_.push_back({{"role", "assistant"}, {"content", result.text}});
    return {};
  }

  void print_json(const Model& model, const GenerateResult& result) const {
    const Json out = {{"text", result.text},
                      {"tokens", result.tokens},
                      {"finish_reason", result.finish_reason},
                      {"prompt_tokens", result.prompt_tokens},
                      {"completion_tokens", result.tokens.size()},
                      {"load_seconds", model.load_seconds()},
                      {"ttft_seconds", result.first_token_seconds},
                      {"tpot_seconds", result.seconds_per_token},
                      {"kv_clipped", kv_clipped_json(model)},
                      {"scheme", model.plan().scheme},
                      {"isa", isa_name(model.isa())}};
    fmt::print("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
  }

  Result<void> chat(Model& model, Sequence& sequence) {
    const bool terminal = is_terminal(STDIN_FILENO);
    if (terminal)
      fmt::print(stderr, "{} ready in {:.2f} s. An empty line or Ctrl-D ends the chat.\n", model_.model,
                 model.load_seconds());
    std::string line;
    while (true) {
      if (terminal) fmt::print(stderr, "> ");
      if (!std::getline(std::cin, line) || line.empty()) return {};
      OCTAVO_TRY(answer(model, sequence, line));
    }
  }

  ModelFlags model_;
  GreedyHeadFlag greedy_head_;
  OutputOptions output_;
  GenerateOptions generate_;
  std::string prompt_, system_;
  uint64_t seed_ = 0;
  bool raw_ = false;
  Json messages_ = Json::array();
};

}  // namespace

std::unique_ptr<Command> make_run_command() {
  return std::make_unique<RunCommand>();
}

}  // namespace octavo
