// octavo quantize: a checkpoint in eight bits, that Octavo and other engines load.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/json.h"
#include "checkpoint/outliers.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "precision/kv_format.h"
#include "quantize/dry_run.h"
#include "quantize/expert_coverage.h"
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
    flags.option("scheme", options_.plan.scheme, fmt::format("{}; bf16 with --kv", fmt::join(weight_schemes(), ", ")));
    flags.option("plan", plan_, "A plan file instead of a scheme: the format of every layer (octavo sensitivity)");
    flags.option("ignore", options_.plan.ignore,
                 "Keep these modules wide: a name, a role (down_proj), or re:PATTERN; may be repeated");
    flags.option("override", overrides_, "RULE=SCHEME: another scheme for these modules; may be repeated");
    flags.option("dialect", options_.dialect,
                 "fp8, compressed-tensors, modelopt or gptq (default: the one that suits)");
    flags.group("Calibration");
    flags.option("calibrate", calibrate_,
                 "FILE[:WEIGHT][,FILE...]: .jsonl lines of {\"text\"} or {\"messages\"}, or plain text");
    flags.option("samples", calibration_.data.samples, "Sequences of calibration text");
    flags.option("length", calibration_.data.length, "Tokens of a sequence (by default at most the model's context)");
    flags.option("seed", calibration_.data.seed, "Draws the documents and their order");
    flags.option("rounding", rounding_,
                 "nearest, gptq, awq or awq-gptq (default: gptq with --calibrate, else nearest)");
    flags.option("scales-from", scales_from_,
                 "A quantized folder: its formats, dialect and activation scales for this model's weights (with "
                 "--calibrate, drift is checked); or a calibration.npz");
    flags.option("estimator", estimator_,
                 "Static activation scales: amax, mse, percentile[:QUANTILE[:CLIP]], margin[:SHARE]");
    flags.option("kv", kv_.kv, fmt::format("The KV cache of the new model, calibrated: {}", kv_spelling()));
    flags.flag("refit-temperature", kv_.refit_temperature,
               "With --kv: a factor on each layer's queries, so that attention keeps the entropy of a BF16 cache");
    flags.option(
        "outliers", outliers_,
        "SHARE of each layer's input channels (1% or 0.01, at most 10%): those of the largest activations keep "
        "BF16 weights and wide activations (needs --calibrate)");
    flags.flag("act-order", calibration_.gptq.act_order, "GPTQ: columns with large activations first");
    flags.option("damping", calibration_.gptq.damping, "GPTQ: share of the Hessian's mean diagonal added to it");
    flags.flag("wide-activations", wide_activations_,
               "Calibrate behind BF16 activations and KV cache, not behind the scheme's own");
    flags.option("memory-limit", memory_limit_, "MB of activations held in memory; more is spilled beside OUT");
    flags.flag("dry-run", dry_run_, "Say what it will take of memory, disk and time, and write nothing");
    flags.group("Transforms");
    flags.option("smooth", smooth_,
                 "0 < A < 1: SmoothQuant, moves the range of activation channels into weights (needs --calibrate)");
    flags.option("rotate", rotate_,
                 "online: rotate residual stream, heads and down_proj's input; offline: only what weights absorb, so "
                 "that every engine loads it");
    machine_.declare(flags);
    output_.declare(flags);
    given_ = flags.given();
  }

  Result<void> run() override {
    OCTAVO_TRY(check_idle_flags());
    OCTAVO_ASSIGN(options_.plan.file, open_plan(plan_));
    if (options_.plan.scheme.empty() && plan_.empty() && scales_from_.empty())
      return fail({.what = "no scheme",
                   .where = "--scheme",
                   .expected = "for example fp8, or a plan file with --plan",
                   .remedy = "octavo quantize MODEL OUT --scheme fp8"});
    ModelOptions machine;
    OCTAVO_TRY(machine_.apply(machine));
    options_.threads = machine.threads > 0 ? machine.threads : available_cores();
    OCTAVO_ASSIGN(options_.plan.overrides, parse_overrides(overrides_));
    OCTAVO_TRY(read_calibration(machine));
    OCTAVO_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(model_));
    OCTAVO_TRY(read_earlier(checkpoint.config()));
    if (options_.calibrate && !given_("length"))
      options_.calibrate->data.length = std::min(calibration_.data.length, checkpoint.config().context_length());
    if (dry_run_) return print_estimate(checkpoint);
    const auto start = std::chrono::steady_clock::now();
    Result<QuantizeSummary> quantized = fail({});
    {
      Progress calibrating("calibrating", output_.json), progress("quantizing", output_.json);
      if (options_.calibrate)
        options_.calibrate->progress = [&](double done, double total, std::string_view detail) {
          calibrating.update(done, total, detail);
        };
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
  // Schemes that quantize weights, as the one list has them.
  static std::vector<std::string_view> weight_schemes() {
    std::vector<std::string_view> names;
    for (const Scheme& scheme : schemes())
      if (scheme.weight.scaled()) names.push_back(scheme.name);
    return names;
  }

  // Flags that would change nothing.
  Result<void> check_idle_flags() const {
    if (calibrate_.empty()) {
      OCTAVO_TRY(given_.refuse({"samples", "length", "damping", "act-order", "memory-limit", "wide-activations"},
                               "it needs --calibrate FILE"));
      if (scales_from_.empty())
        OCTAVO_TRY(given_.refuse({"estimator"}, "it needs --calibrate FILE, or --scales-from calibration.npz"));
      if (rotate_.empty()) OCTAVO_TRY(given_.refuse({"seed"}, "it needs --calibrate FILE, or --rotate"));
    }
    if (rounding_.empty() || rounding_.ends_with("gptq")) return {};
    return given_.refuse({"damping", "act-order"}, "it needs --rounding gptq or awq-gptq");
  }

  Result<void> read_earlier(const ModelConfig& config) {
    if (scales_from_.empty()) return {};
    OCTAVO_ASSIGN(options_.earlier, read_earlier_scales(scales_from_, config));
    const bool folder = options_.earlier->plan.has_value();
    if (folder && !(options_.plan.scheme.empty() && plan_.empty() && options_.plan.ignore.empty() &&
                    options_.plan.overrides.empty()))
      return fail({.what = "a scheme and an earlier model's formats at once",
                   .where = "--scales-from",
                   .found = scales_from_,
                   .remedy = "leave out --scheme, --plan, --ignore and --override: the folder decides the formats"});
    if (!folder && options_.plan.scheme.empty() && plan_.empty())
      return fail({.what = "no scheme", .where = "--scheme", .expected = "for example fp8-static"});
    return {};
  }

  Result<void> read_calibration(const ModelOptions& machine) {
    if (!rounding_.empty() && rounding_ != "nearest" && rounding_ != "gptq" && rounding_ != "awq" &&
        rounding_ != "awq-gptq")
      return fail({.what = "unknown rounding",
                   .where = "--rounding",
                   .found = fmt::format("'{}'", rounding_),
                   .expected = "nearest, gptq, awq or awq-gptq"});
    OCTAVO_ASSIGN(calibration_.estimator, parse_estimator(estimator_));
    options_.estimator = calibration_.estimator;
    if (!kv_.kv.empty()) options_.kv = kv_;
    if (kv_.kv.empty() && kv_.refit_temperature)
      return fail({.what = "a query temperature without a KV cache to fit it to",
                   .where = "--refit-temperature",
                   .remedy = "name the cache with --kv, for example --kv fp8_e4m3:static"});
    OCTAVO_TRY(read_transforms());
    OCTAVO_TRY(read_outliers());
    if (calibrate_.empty()) {
      if (rounding_.ends_with("gptq"))
        return fail({.what = "GPTQ needs calibration text",
                     .where = "--rounding gptq",
                     .remedy = "give some with --calibrate FILE"});
      return {};
    }
    if (!(calibration_.gptq.damping > 0) || calibration_.gptq.damping > 100)
      return fail({.what = "damping is out of range",
                   .where = "--damping",
                   .found = fmt::format("{}", calibration_.gptq.damping),
                   .expected = "above 0, at most 100"});
    if (memory_limit_ < 0 || memory_limit_ > 1'000'000'000)
      return fail({.what = "memory limit is out of range",
                   .where = "--memory-limit",
                   .found = fmt::format("{}", memory_limit_),
                   .expected = "0 to 1000000000 MB"});
    calibration_.planned_activations = !wide_activations_;
    calibration_.memory_limit = memory_limit_ * 1'000'000;
    OCTAVO_ASSIGN(calibration_.data.sources, parse_calibration_sources(calibrate_));
    calibration_.rounding = rounding_ == "nearest" || rounding_ == "awq" ? Rounding::kNearest : Rounding::kGptq;
    calibration_.isa = machine.isa.value_or(best_isa());
    if (!isa_available(calibration_.isa))
      return fail({.what = fmt::format("this machine cannot run --isa {}", isa_name(calibration_.isa)),
                   .where = "--isa",
                   .expected = fmt::format("{} or below", isa_name(best_isa()))});
    options_.calibrate = calibration_;
    return {};
  }

  Result<void> read_transforms() {
    using Rotate = TransformOptions::Rotate;
    TransformOptions& transforms = options_.transforms;
    if (!smooth_.empty()) {
      const char* const end = smooth_.data() + smooth_.size();
      const auto [rest, error] = std::from_chars(smooth_.data(), end, transforms.smooth);
      if (error != std::errc() || rest != end || !(transforms.smooth > 0 && transforms.smooth < 1))
        return fail({.what = "smoothing is out of range",
                     .where = "--smooth",
                     .found = fmt::format("'{}'", smooth_),
                     .expected = "above 0, below 1; for example 0.5"});
    }
    if (!rotate_.empty() && rotate_ != "online" && rotate_ != "offline")
      return fail({.what = "unknown rotation",
                   .where = "--rotate",
                   .found = fmt::format("'{}'", rotate_),
                   .expected = "online or offline"});
    if (!rotate_.empty()) transforms.rotate = rotate_ == "online" ? Rotate::kOnline : Rotate::kOffline;
    transforms.seed = calibration_.data.seed;
    transforms.awq = rounding_.starts_with("awq");
    return {};
  }

  Result<void> read_outliers() {
    if (outliers_.empty()) return {};
    const bool percent = outliers_.ends_with('%');
    const char *const begin = outliers_.data(), *const end = begin + outliers_.size() - (percent ? 1 : 0);
    double share = 0;
    const auto [rest, error] = std::from_chars(begin, end, share);
    if (percent) share /= 100;
    if (error != std::errc() || rest != end || !(share > 0 && share <= kMostOutliers))
      return fail({.what = "share of outlier channels is out of range",
                   .where = "--outliers",
                   .found = fmt::format("'{}'", outliers_),
                   .expected = "above 0, at most 10%; for example 1% or 0.01"});
    options_.outliers = share;
    return {};
  }

  Result<void> print_estimate(const Checkpoint& checkpoint) const {
    OCTAVO_ASSIGN(const QuantizeEstimate e, estimate_quantization(checkpoint, out_, options_));
    if (output_.json) {
      const Json out = {{"memory_bytes", e.memory_bytes},
                        {"disk_bytes", e.disk_bytes},
                        {"output_bytes", e.output_bytes},
                        {"spilled_bytes", e.spilled_bytes},
                        {"calibration_samples", e.samples},
                        {"calibration_tokens", e.tokens},
                        {"calibration_seconds", e.calibration_seconds},
                        {"seconds", e.seconds}};
      fmt::print("{}\n", out.dump(2));
      return {};
    }
    fmt::print("{}: about {} of memory, {} of free disk space while it is made, {} of tensors afterwards; about {}\n",
               out_, human_bytes(static_cast<double>(e.memory_bytes)), human_bytes(static_cast<double>(e.disk_bytes)),
               human_bytes(static_cast<double>(e.output_bytes)), human_seconds(e.seconds));
    if (!options_.calibrate) return {};
    fmt::print("  calibration on {} tokens in {} samples: about {} of it\n", e.tokens, e.samples,
               human_seconds(e.calibration_seconds));
    if (e.spilled_bytes > 0)
      fmt::print("  {} of activations are spilled to disk: --memory-limit\n",
                 human_bytes(static_cast<double>(e.spilled_bytes)));
    return {};
  }

  void print(const QuantizeSummary& s, double seconds) const {
    fmt::print("{}: scheme {}, dialect {}\n", out_, s.plan.scheme, s.dialect);
    fmt::print("  {} tensors quantized, {} kept; {} -> {} ({:.1f} %); {}, {}/s read\n", s.quantized.size(),
               s.tensors_kept, human_bytes(static_cast<double>(s.bytes_before)),
               human_bytes(static_cast<double>(s.bytes_after)),
               100.0 * static_cast<double>(s.bytes_after) / static_cast<double>(s.bytes_before), human_seconds(seconds),
               human_bytes(static_cast<double>(s.bytes_before) / seconds));
    if (!s.quantized.empty())
      fmt::print("  relative RMS error: mean {:.2f} %, worst {:.2f} % ({})\n", 100 * s.mean_error, 100 * s.worst_error,
                 s.worst_tensor);
    print_calibration(s);
    if (s.kv) print_kv(*s.kv);
    for (const std::string& note : s.notes) fmt::print("  note: {}\n", note);
  }

  void print_kv(const KvReport& kv) const {
    fmt::print("  KV cache {}: values from {} tokens in octavo_kv.json\n", kv.kv, kv.tokens);
    for (const auto& [name, side] : {std::pair("K", kv.k), std::pair("V", kv.v)})
      if (side)
        fmt::print("  {}: at worst {:.4f} % of the values saturate (layer {}), {:.4f} % round to zero\n", name,
                   100 * side->saturated, side->layer, 100 * side->underflowed);
    if (kv.entropies.empty()) return;
    float low = kv.entropies[0].temperature, high = low;
    double bf16 = 0, lowered = 0;
    for (const KvReport::Entropy& e : kv.entropies) {
      low = std::min(low, e.temperature);
      high = std::max(high, e.temperature);
      bf16 += e.bf16 / static_cast<double>(kv.entropies.size());
      lowered += e.lowered / static_cast<double>(kv.entropies.size());
    }
    fmt::print(
        "  attention entropy: {:.5f} with a BF16 cache, {:.5f} with this one; query temperature {:.5f} to {:.5f}\n",
        bf16, lowered, low, high);
  }

  static Json kv_json(const QuantizeSummary& s) {
    if (!s.kv) return nullptr;
    Json out = {{"kv_cache", s.kv->kv}, {"tokens", s.kv->tokens}, {"temperatures", Json::array()}};
    for (const auto& [name, side] : {std::pair("k", s.kv->k), std::pair("v", s.kv->v)})
      out[name] = !side ? Json(nullptr)
                        : Json{{"saturated", side->saturated},
                               {"saturated_layer", side->layer},
                               {"underflowed", side->underflowed}};
    for (const KvReport::Entropy& e : s.kv->entropies)
      out["temperatures"].push_back({{"entropy_bf16", e.bf16}, {"entropy", e.lowered}, {"temperature", e.temperature}});
    return out;
  }

  void print_calibration(const QuantizeSummary& s) const {
    if (!options_.calibrate) return;
    for (const CalibrationSet::File& file : s.calibration_files)
      fmt::print("  calibrated on {}: {} tokens in {} samples, {} of {} documents\n", file.path, file.tokens_used,
                 file.samples, file.documents_used, file.documents);
    std::string positions;
    for (const CalibrationSet::Coverage& band : s.coverage)
      if (band.tokens > 0)
        positions += fmt::format("{}{} at {}", positions.empty() ? "" : ", ", band.tokens, band.describe());
    fmt::print("  tokens by position: {}\n", positions);
    if (const ExpertCoverage experts = expert_coverage(s.expert_tokens); experts.experts > 0)
      fmt::print("  tokens by expert: {} to {}, half of them {} or more; of {} experts {} saw none, {} fewer than {}\n",
                 experts.least, experts.most, experts.median, experts.experts, experts.unreached, experts.few,
                 kFewExpertTokens);
    double sum = 0, worst = 0;
    std::string_view worst_name;
    for (const QuantizeSummary::Tensor& t : s.quantized) {
      sum += t.objective_ratio;
      if (t.objective_ratio <= worst) continue;
      worst = t.objective_ratio;
      worst_name = t.name;
    }
    if (worst > 0)
      fmt::print("  GPTQ: squared output error {:.2f} of rounding's on average, worst {:.2f} ({})\n",
                 sum / static_cast<double>(s.quantized.size()), worst, worst_name);
  }

  void print_json(const QuantizeSummary& s, double seconds) const {
    Json tensors = Json::array();
    for (const QuantizeSummary::Tensor& t : s.quantized)
      tensors.push_back({{"name", t.name},
                         {"format", t.format.describe()},
                         {"error", t.error},
                         {"objective_ratio", t.objective_ratio}});
    Json files = Json::array(), coverage = Json::array();
    for (const CalibrationSet::File& f : s.calibration_files)
      files.push_back({{"path", f.path},
                       {"weight", f.weight},
                       {"documents", f.documents},
                       {"documents_used", f.documents_used},
                       {"samples", f.samples},
                       {"tokens", f.tokens_used}});
    for (const CalibrationSet::Coverage& c : s.coverage)
      coverage.push_back({{"begin", c.begin}, {"end", c.end}, {"tokens", c.tokens}});
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
                      {"calibration", {{"files", files}, {"coverage", coverage}, {"expert_tokens", s.expert_tokens}}},
                      {"kv", kv_json(s)},
                      {"tensors", tensors}};
    fmt::print("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
  }

  std::string model_, out_;
  QuantizeOptions options_;
  CalibrateOptions calibration_;
  KvCalibrateOptions kv_;
  std::string plan_, calibrate_, rounding_, scales_from_, estimator_ = "amax", smooth_, rotate_, outliers_;
  bool dry_run_ = false, wide_activations_ = false;
  int64_t memory_limit_ = 1000;
  std::vector<std::string> overrides_;
  GivenFlags given_;
  MachineOptions machine_;
  OutputOptions output_;
};

}  // namespace

std::unique_ptr<Command> make_quantize_command() {
  return std::make_unique<QuantizeCommand>();
}

}  // namespace octavo
