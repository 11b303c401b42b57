// octavo quantize: a checkpoint in eight bits, that Octavo and other engines load.
#include <fmt/format.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "quantize/quantize_checkpoint.h"

namespace octavo {
namespace {

class QuantizeCommand final : public Command {
 public:
  std::string_view name() const override { return "quantize"; }
  std::string_view group() const override { return "Make a model"; }
  std::string_view summary() const override { return "Write a quantized copy of a checkpoint"; }
  bool wants_json() const override { return output_.json; }

  void declare(Flags& flags) override {
    flags.argument("MODEL", model_, "The model folder to quantize");
    flags.argument("OUT", out_, "The folder to write (new or empty)");
    flags.group("Precision");
    flags.option("scheme", options_.plan.scheme, "fp8, fp8-block, fp8-block-ue8m0, fp8-tensor, fp8-weight, int8");
    flags.option("ignore", options_.plan.ignore,
                 "Keep these modules wide: a name, a role (down_proj), or re:PATTERN; may be repeated");
    flags.option("override", overrides_, "RULE=SCHEME: another scheme for these modules; may be repeated");
    flags.option("dialect", options_.dialect,
                 "fp8, compressed-tensors, modelopt or gptq (default: the one that suits)");
    machine_.declare(flags);
    output_.declare(flags);
  }

  Result<void> run() override {
    if (options_.plan.scheme.empty())
      return fail({.what = "no scheme",
                   .where = "--scheme",
                   .expected = "for example fp8",
                   .remedy = "octavo quantize MODEL OUT --scheme fp8"});
    ModelOptions machine;
    OCTAVO_TRY(machine_.apply(machine));
    options_.threads = machine.threads > 0 ? machine.threads : available_cores();
    OCTAVO_ASSIGN(options_.plan.overrides, parse_overrides(overrides_));
    OCTAVO_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(model_));
    const auto start = std::chrono::steady_clock::now();
    Result<QuantizeSummary> quantized = fail({});
    {
      Progress progress("quantizing", output_.json);
      quantized = quantize_checkpoint(checkpoint, out_, options_, [&](const QuantizeProgress& p) {
        progress.update(static_cast<double>(p.bytes_done), static_cast<double>(p.bytes_total), p.tensor);
      });
    }
    OCTAVO_ASSIGN(const QuantizeSummary summary, std::move(quantized));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    output_.json ? print_json(summary, seconds) : print(summary, seconds);
    return {};
  }

 private:
  void print(const QuantizeSummary& s, double seconds) const {
    fmt::print("{}: scheme {}, dialect {}\n", out_, s.plan.scheme, s.dialect);
    fmt::print("  {} tensors quantized, {} kept; {} -> {} ({:.1f} %); {}, {}/s read\n", s.quantized.size(),
               s.tensors_kept, human_bytes(static_cast<double>(s.bytes_before)),
               human_bytes(static_cast<double>(s.bytes_after)),
               100.0 * static_cast<double>(s.bytes_after) / static_cast<double>(s.bytes_before), human_seconds(seconds),
               human_bytes(static_cast<double>(s.bytes_before) / seconds));
    fmt::print("  relative RMS error: mean {:.2f} %, worst {:.2f} % ({})\n", 100 * s.mean_error, 100 * s.worst_error,
               s.worst_tensor);
    for (const std::string& note : s.notes) fmt::print("  note: {}\n", note);
  }

  void print_json(const QuantizeSummary& s, double seconds) const {
    Json tensors = Json::array();
    for (const QuantizeSummary::Tensor& t : s.quantized)
      tensors.push_back({{"name", t.name}, {"format", t.format.describe()}, {"error", t.error}});
    const Json out = {{"out", out_},
                      {"scheme", s.plan.scheme},
                      {"dialect", s.dialect},
                      {"tensors_quantized", s.quantized.size()},
                      {"tensors_kept", s.tensors_kept},
                      {"bytes_before", s.bytes_before},
                      {"bytes_after", s.bytes_after},
                      {"mean_error", s.mean_error},
                      {"worst_error", s.worst_error},
                      {"worst_tensor", s.worst_tensor},
                      {"seconds", seconds},
                      {"notes", s.notes},
                      {"tensors", tensors}};
    fmt::print("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
  }

  std::string model_, out_;
  QuantizeOptions options_;
  std::vector<std::string> overrides_;
  MachineOptions machine_;
  OutputOptions output_;
};

}  // namespace

std::unique_ptr<Command> make_quantize_command() {
  return std::make_unique<QuantizeCommand>();
}

}  // namespace octavo
