// octavo evaluate MODEL --text FILE: perplexity.
#include <fmt/format.h>

#include "base/json.h"
#include "cli/evaluate_modes.h"
#include "cli/terminal.h"
#include "evaluate/compare_json.h"

namespace octavo {

Result<void> evaluate_perplexity(const EvaluateFlags& flags) {
  OCTAVO_ASSIGN(const std::string text, evaluation_text(flags));
  OCTAVO_ASSIGN(const ModelSpec spec, model_spec(flags));
  OCTAVO_ASSIGN(std::optional<SectionLog> log,
                open_sections(flags, "perplexity", {spec}, text, {{"context", flags.windows.context}}));
  OCTAVO_ASSIGN(const std::unique_ptr<Model> model, flags.model.load(flags.output.json));
  Result<PerplexityResult> measured = fail({});
  {
    Progress progress("evaluating", flags.output.json);
    measured = perplexity(
        *model, text, flags.windows,
        [&](int64_t done, int64_t total, double running) {
          progress.update(static_cast<double>(done), static_cast<double>(total),
                          fmt::format("perplexity {:.3f}", running));
        },
        address(log));
  }
  OCTAVO_ASSIGN(const PerplexityResult result, std::move(measured));
  const double rate = static_cast<double>(result.windows_measured * flags.windows.context) / result.seconds;
  if (flags.output.json) {
    const Json out = {{"perplexity", result.perplexity},
                      {"nll", result.nll},
                      {"nll_standard_error", number_or_null(result.nll_standard_error)},
                      {"tokens_scored", result.tokens_scored},
                      {"tokens", result.tokens},
                      {"windows", result.windows},
                      {"context", flags.windows.context},
                      {"seconds", result.seconds},
                      {"tokens_per_second", rate},
                      {"kv_clipped", kv_clipped_json(*model)},
                      {"scheme", model->plan().scheme},
                      {"isa", isa_name(model->isa())}};
    fmt::print("{}\n", out.dump(2));
    return {};
  }
  fmt::print("perplexity {:.4f} (mean NLL {}) over {} tokens in {} windows of {}; {:.1f} s, {:.0f} tok/s\n",
             result.perplexity, with_error(fmt::format("{:.5f}", result.nll), result.nll_standard_error, 5),
             result.tokens_scored, result.windows, flags.windows.context, result.seconds, rate);
  tell_kv_clipped(*model);
  return {};
}

}  // namespace octavo
