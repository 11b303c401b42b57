// octavo bench: prefill and decode speed beside the roofline.
#include <fmt/format.h>

#include <optional>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "evaluate/batch_speed.h"
#include "evaluate/speed.h"

namespace octavo {
namespace {

Json figure_json(const SpeedFigure& figure) {
  return {{"tokens_per_second", figure.tokens_per_second}, {"spread", figure.spread},
          {"roofline_share", figure.roofline_share},       {"gb_per_token", figure.gb_per_token},
          {"gflop_per_token", figure.gflop_per_token},     {"achieved_gb_s", figure.achieved_gb_s},
          {"achieved_gflops", figure.achieved_gflops}};
}

class BenchCommand final : public Command {
 public:
  std::string_view name() const override { return "bench"; }
  std::string_view group() const override { return "Prove"; }
  std::string_view summary() const override {
    return "Prefill and decode speed, and the share of the roofline reached";
  }
  bool wants_json() const override { return output_.json; }

  void declare(Flags& flags) override {
    model_.declare(flags);
    flags.option("prompt", options_.prompt, "Tokens of the prefill");
    flags.option("generate", options_.generate, "Decode steps");
    flags.option("depth", options_.depth, "Tokens in the cache before either starts");
    flags.option("batch", batch_, "Sequences decoded together; more than 1: also what the kernels do at that batch");
    flags.option("repeat", options_.repeat, "Repeats; medians are reported");
    greedy_head_.declare(flags);
    output_.declare(flags);
  }

  Result<void> run() override {
    OCTAVO_ASSIGN(const std::unique_ptr<Model> model, model_.load(output_.json, false, !greedy_head_.off));
    const BatchSpeedOptions batch{.batch = batch_,
                                  .prompt = options_.prompt,
                                  .generate = options_.generate,
                                  .depth = options_.depth,
                                  .repeat = options_.repeat};
    OCTAVO_TRY(check_batch_speed(*model, batch));
    Result<SpeedResult> measured = fail({});
    {
      Progress progress("measuring", output_.json);
      measured = measure_speed(*model, options_, [&](int done, int total) { progress.update(done, total); });
    }
    OCTAVO_ASSIGN(const SpeedResult result, std::move(measured));
    if (batch_ != 1) {
      Progress progress("measuring", output_.json);
      OCTAVO_ASSIGN(together_,
                    measure_batch_speed(*model, batch, [&](int done, int total) { progress.update(done, total); }));
    }
    output_.json ? print_json(*model, result) : print(*model, result);
    return {};
  }

 private:
  void print_json(const Model& model, const SpeedResult& r) const {
    Json out = {{"prefill", figure_json(r.prefill)},
                {"decode", figure_json(r.decode)},
                {"greedy_decode", r.greedy ? figure_json(*r.greedy) : Json()},
                {"ttft_seconds", r.ttft_seconds},
                {"tpot_seconds", r.tpot_seconds},
                {"roofline",
                 {{"read_gb_s", r.roofline.read_gb_s},
                  {"fma_gflops", r.roofline.fma_gflops},
                  {"bf16_dot_gflops", r.roofline.bf16_dot_gflops},
                  {"int8_gops", r.roofline.int8_gops},
                  {"prefill_bound", r.prefill_bound}}},
                {"prompt", options_.prompt},
                {"generate", options_.generate},
                {"depth", options_.depth},
                {"repeat", options_.repeat},
                {"scheme", model.plan().scheme},
                {"isa", isa_name(model.isa())}};
    if (together_)
      out["together"] = {{"batch", batch_},
                         {"prefill_tokens_per_second", together_->prefill},
                         {"decode_tokens_per_second", together_->decode},
                         {"output_tokens_per_second", together_->output},
                         {"spread", together_->spread},
                         {"step_seconds", together_->step_seconds},
                         {"step_byte_seconds", together_->byte_seconds},
                         {"step_compute_seconds", together_->compute_seconds},
                         {"roofline_share", together_->roofline_share()}};
    fmt::print("{}\n", out.dump(2));
  }

  void print(const Model& model, const SpeedResult& r) const {
    fmt::print("{}, scheme {}, {}, medians of {}\n", cpu_features().model, model.plan().scheme, isa_name(model.isa()),
               options_.repeat);
    Table table({"", "tok/s", "spread", "per token", "achieved", "roofline", "share"});
    table.add({fmt::format("prefill {}", options_.prompt), fmt::format("{:.0f}", r.prefill.tokens_per_second),
               fmt::format("{:.0f} %", 100 * r.prefill.spread), fmt::format("{:.3f} GFLOP", r.prefill.gflop_per_token),
               fmt::format("{:.0f} GFLOP/s", r.prefill.achieved_gflops), r.prefill_bound,
               fmt::format("{:.0f} %", 100 * r.prefill.roofline_share)});
    const auto add_decode = [&](std::string name, const SpeedFigure& figure) {
      table.add({std::move(name), fmt::format("{:.1f}", figure.tokens_per_second),
                 fmt::format("{:.0f} %", 100 * figure.spread), human_bytes(figure.gb_per_token * 1e9),
                 fmt::format("{:.1f} GB/s", figure.achieved_gb_s),
                 fmt::format("read {:.1f} GB/s", r.roofline.read_gb_s),
                 fmt::format("{:.0f} %", 100 * figure.roofline_share)});
    };
    add_decode(fmt::format("decode {}", options_.generate), r.decode);
    if (r.greedy) add_decode("... greedy", *r.greedy);
    fmt::print(
        "{}peaks in the same run: FMA {:.0f} GFLOP/s, BF16 dot {:.0f} GFLOP/s, INT8 dot {:.0f} GOP/s, read {:.1f} "
        "GB/s\n",
        table.text(), r.roofline.fma_gflops, r.roofline.bf16_dot_gflops, r.roofline.int8_gops, r.roofline.read_gb_s);
    if (!together_) return;
    fmt::print(
        "{} together: prefill {:.0f}, decode {:.0f} tok/s ({:.1f} ms a step, at least {:.1f} for its bytes or "
        "{:.1f} for its operations: {:.0f} %)\n  {:.0f} output tok/s with each prompt's prefill\n",
        batch_, together_->prefill, together_->decode, 1e3 * together_->step_seconds, 1e3 * together_->byte_seconds,
        1e3 * together_->compute_seconds, 100 * together_->roofline_share(), together_->output);
  }

  ModelFlags model_;
  GreedyHeadFlag greedy_head_;
  OutputOptions output_;
  SpeedOptions options_;
  int64_t batch_ = 1;
  std::optional<BatchSpeedResult> together_;
};

}  // namespace

std::unique_ptr<Command> make_bench_command() {
  return std::make_unique<BenchCommand>();
}

}  // namespace octavo
