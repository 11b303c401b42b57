// octavo evaluate: perplexity of a model on a text.
#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "evaluate/perplexity.h"

namespace octavo {
namespace {

class EvaluateCommand final : public Command {
 public:
  std::string_view name() const override { return "evaluate"; }
  std::string_view group() const override { return "Prove"; }
  std::string_view summary() const override { return "Perplexity over fixed windows of a text"; }
  bool wants_json() const override { return output_.json; }

  void declare(Flags& flags) override {
    model_.declare(flags);
    flags.option("text", text_, "The text file (UTF-8)");
    flags.option("context", options_.context, "Tokens of a window");
    flags.option("windows", options_.windows, "Number of windows (0: all of the text)");
    output_.declare(flags);
  }

  Result<void> run() override {
    if (text_.empty()) return fail({.what = "no text to evaluate on", .where = "--text", .expected = "a file"});
    OCTAVO_ASSIGN(const std::string text, read_text_file(text_));
    OCTAVO_ASSIGN(const std::unique_ptr<Model> model, model_.load(output_.json));
    Result<PerplexityResult> measured = fail({});
    {
      Progress progress("evaluating", output_.json);
      measured = perplexity(*model, text, options_, [&](int64_t done, int64_t total, double running) {
        progress.update(static_cast<double>(done), static_cast<double>(total),
                        fmt::format("perplexity {:.3f}", running));
      });
    }
    OCTAVO_ASSIGN(const PerplexityResult result, std::move(measured));
    const double rate = static_cast<double>(result.windows * options_.context) / result.seconds;
    if (output_.json) {
      const Json out = {{"perplexity", result.perplexity},
                        {"nll", result.nll},
                        {"nll_standard_error", result.nll_standard_error},
                        {"tokens_scored", result.tokens_scored},
                        {"tokens", result.tokens},
                        {"windows", result.windows},
                        {"context", options_.context},
                        {"seconds", result.seconds},
                        {"tokens_per_second", rate},
                        {"scheme", model->plan().scheme},
                        {"isa", isa_name(model->isa())}};
      fmt::print("{}\n", out.dump(2));
      return {};
    }
    fmt::print(
        "perplexity {:.4f} (mean NLL {:.5f} ± {:.5f}) over {} tokens in {} windows of {}; {:.1f} s, {:.0f} tok/s\n",
        result.perplexity, result.nll, result.nll_standard_error, result.tokens_scored, result.windows,
        options_.context, result.seconds, rate);
    return {};
  }

 private:
  ModelFlags model_;
  OutputOptions output_;
  PerplexityOptions options_;
  std::string text_;
};

}  // namespace

std::unique_ptr<Command> make_evaluate_command() {
  return std::make_unique<EvaluateCommand>();
}

}  // namespace octavo
