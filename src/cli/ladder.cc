// octavo ladder: what each step from BF16 to eight bits costs and gains, on one model, in one table.
#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "evaluate/perplexity.h"
#include "evaluate/speed.h"

namespace octavo {
namespace {

struct Rung {
  std::string_view name, scheme, kv;
};
constexpr Rung kRungs[] = {{"BF16", "bf16", "bf16"},
                           {"FP8 weights", "fp8-weight", "bf16"},
                           {"+ FP8 activations", "fp8", "bf16"},
                           {"+ FP8 KV cache", "fp8", "fp8_e4m3"},
                           {"INT8 W8A8 + INT8 KV", "int8", "int8"}};

struct Measured {
  double weight_bytes = 0, kv_bytes_per_token = 0;
  SpeedResult speed;
  PerplexityResult quality;
};

class LadderCommand final : public Command {
 public:
  std::string_view name() const override { return "ladder"; }
  std::string_view group() const override { return "Prove"; }
  std::string_view summary() const override {
    return "BF16, FP8 step by step, and INT8 side by side: memory, speed, perplexity";
  }
  bool wants_json() const override { return output_.json; }

  void declare(Flags& flags) override {
    flags.argument("MODEL", model_, "A BF16 model folder or a .gguf file");
    flags.option("text", text_, "The text file (UTF-8) for perplexity");
    flags.option("context", quality_.context, "Tokens of a perplexity window");
    flags.option("windows", quality_.windows, "Perplexity windows");
    flags.option("prompt", speed_.prompt, "Tokens of the prefill");
    flags.option("generate", speed_.generate, "Decode steps");
    flags.option("repeat", speed_.repeat, "Repeats of the speed measurement");
    machine_.declare(flags);
    output_.declare(flags);
  }

  Result<void> run() override {
    if (text_.empty()) return fail({.what = "no text to evaluate on", .where = "--text", .expected = "a file"});
    OCTAVO_ASSIGN(const std::string text, read_text_file(text_));
    std::vector<Measured> all;
    std::string isa;
    for (const Rung& rung : kRungs) {
      OCTAVO_ASSIGN(Measured measured, measure(rung, text, isa));
      all.push_back(std::move(measured));
    }
    output_.json ? print_json(all, isa) : print(all, isa);
    return {};
  }

 private:
  Result<Measured> measure(const Rung& rung, const std::string& text, std::string& isa) {
    ModelOptions options;
    OCTAVO_TRY(machine_.apply(options));
    options.plan.scheme = rung.scheme;
    options.plan.kv_cache_dtype = rung.kv;
    OCTAVO_ASSIGN(const std::unique_ptr<Model> model, Model::load(model_, options));
    isa = isa_name(model->isa());
    Measured out;
    // A tied head is the embedding's values a second time, in the kernels' layout.
    out.weight_bytes =
        static_cast<double>(model->decoder().report().linear_bytes + model->decoder().report().norm_bytes);
    out.kv_bytes_per_token = model->kv_geometry().bytes_per_token();
    Progress progress(std::string(rung.name), output_.json);
    OCTAVO_ASSIGN(out.speed, measure_speed(*model, speed_,
                                           [&](int done, int total) { progress.update(done, 2.0 * total, "speed"); }));
    OCTAVO_ASSIGN(out.quality, perplexity(*model, text, quality_, [&](int64_t done, int64_t total, double running) {
                    progress.update(static_cast<double>(total + done), 2.0 * static_cast<double>(total),
                                    fmt::format("perplexity {:.3f}", running));
                  }));
    return out;
  }

  void print(const std::vector<Measured>& all, const std::string& isa) const {
    fmt::print("{} on {}, {}\n", model_, cpu_features().model, isa);
    Table table({"", "weights", "KV/token", "TTFT", "TPOT", "prefill", "decode", "perplexity", ""});
    for (size_t i = 0; i < all.size(); ++i) {
      const Measured& m = all[i];
      table.add(
          {std::string(kRungs[i].name), human_bytes(m.weight_bytes), human_bytes(m.kv_bytes_per_token),
           fmt::format("{:.0f} ms", m.speed.ttft_seconds * 1e3), fmt::format("{:.1f} ms", m.speed.tpot_seconds * 1e3),
           fmt::format("{:.0f} tok/s", m.speed.prefill.tokens_per_second),
           fmt::format("{:.0f} tok/s", m.speed.decode.tokens_per_second), fmt::format("{:.3f}", m.quality.perplexity),
           i == 0 ? "" : fmt::format("{:+.2f} %", 100 * (m.quality.perplexity / all[0].quality.perplexity - 1))});
    }
    fmt::print("{}prompt of {} tokens; perplexity over {} tokens, {} windows of {}\n", table.text(), speed_.prompt,
               all[0].quality.tokens_scored, all[0].quality.windows, quality_.context);
  }

  void print_json(const std::vector<Measured>& all, const std::string& isa) const {
    Json rungs = Json::array();
    for (size_t i = 0; i < all.size(); ++i) {
      const Measured& m = all[i];
      rungs.push_back({{"name", kRungs[i].name},
                       {"scheme", kRungs[i].scheme},
                       {"kv_cache_dtype", kRungs[i].kv},
                       {"weight_bytes", m.weight_bytes},
                       {"kv_bytes_per_token", m.kv_bytes_per_token},
                       {"ttft_seconds", m.speed.ttft_seconds},
                       {"tpot_seconds", m.speed.tpot_seconds},
                       {"prefill_tokens_per_second", m.speed.prefill.tokens_per_second},
                       {"decode_tokens_per_second", m.speed.decode.tokens_per_second},
                       {"perplexity", m.quality.perplexity},
                       {"tokens_scored", m.quality.tokens_scored}});
    }
    fmt::print("{}\n", Json({{"model", model_}, {"isa", isa}, {"prompt", speed_.prompt}, {"rungs", rungs}}).dump(2));
  }

  std::string model_, text_;
  PerplexityOptions quality_{.context = 512, .windows = 8};
  SpeedOptions speed_{.repeat = 3, .decode_after_prompt = true};
  MachineOptions machine_;
  OutputOptions output_;
};

}  // namespace

std::unique_ptr<Command> make_ladder_command() {
  return std::make_unique<LadderCommand>();
}

}  // namespace octavo
