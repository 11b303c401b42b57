#include "evaluate/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "evaluate/error_budget.h"
#include "evaluate/item_log.h"
#include "evaluate/model_facts.h"
#include "evaluate/sensitivity_json.h"
#include "evaluate/sensitivity_pass.h"
#include "formats/paged_kv.h"
#include "precision/model_shape_json.h"

namespace octavo {
namespace {

constexpr size_t kTogether = 8;  // changes that share the base's logits

enum class Side : uint8_t { kWeight, kKeys, kValues };

// One tensor in one other format.
struct Candidate {
  SensitivityEntry entry;  // what is known before it is measured
  Side side = Side::kWeight;
  Role role = Role::kHead;
};

// Outlier channels are columns of BF16 weights beside the codes, whatever these are.
int64_t stored_bytes(const LinearModule& module, const TensorFormat& weight, int64_t outliers) {
  return weight.element_bytes(module.rows, module.cols) + weight.scale_bytes(module.rows, module.cols) +
         module.rows * outliers * 2;
}

// Of one side of a layer's cache, per token.
int64_t cache_bytes(const ModelConfig& config, const TensorFormat& format) {
  const KvPageLayout page{format.element, format.element, static_cast<int>(config.head_dim)};
  const auto bytes = static_cast<int64_t>(page.k_bytes() + kPageTokens * sizeof(float));
  return bytes * config.num_kv_heads / kPageTokens;
}

Result<void> check_scheme(const Scheme& scheme, const PrecisionPlan& base, const ModelConfig& config, Isa isa) {
  const auto refuse = [&](std::string what, std::string remedy) {
    return fail(
        {.what = std::move(what), .where = "--scheme", .found = std::string(scheme.name), .remedy = std::move(remedy)});
  };
  if (scheme.name == base.scheme) return refuse("the scheme is the base's own", "name another one");
  if (scheme.activation.scaled() && scheme.activation.scale_time == ScaleTime::kStored)
    return refuse("the scheme needs calibrated activation scales", "take a scheme with dynamic ones, such as fp8");
  PrecisionPlan lowered = base;
  for (const LinearModule& module : config.linear_modules()) {
    if (module.role == Role::kRouter) continue;
    LinearPlan& linear = lowered.linears.at(module.name);
    linear = {scheme.weight, scheme.activation, "", linear.outliers};
    OCTAVO_TRY(check_weight_shape(module, scheme.weight));
  }
  if (const std::string slow = slow_formats(lowered, config.linear_modules(), isa); !slow.empty())
    return refuse(fmt::format("no fast kernel for {}", slow), "take another scheme, or another --isa");
  return {};
}

class Measurement {
 public:
  Measurement(const Checkpoint& checkpoint, const SensitivityOptions& options,
              const std::function<void(double, double, std::string_view)>& progress)
      : checkpoint_(checkpoint), options_(options), progress_(progress), pool_(threads(options)) {}

  Result<Sensitivity> run(std::string_view text) {
    OCTAVO_TRY(prepare(text));
    SensitivityPass pass(checkpoint_, base_, windows_,
                         {.isa = isa_,
                          .memory_limit = options_.memory_limit,
                          .spill_folder = options_.spill_folder,
                          .progress = [this](double units) { worked(units); }},
                         pool_);
    total_ = pass.cost(0);
    what_ = "the base";
    OCTAVO_TRY(pass.prepare());
    out_.base_perplexity = pass.base_perplexity();
    OCTAVO_TRY(open_log(text));
    count_work(pass);
    for (int layer = 0; layer < static_cast<int>(config_.num_layers); ++layer) {
      what_ = fmt::format("layer {}", layer);
      if (last_open_ < layer) break;
      OCTAVO_TRY(pass.run_base_layer());
      OCTAVO_TRY(measure_layer(pass, layer));
      pass.step();
    }
    what_ = "the head";
    OCTAVO_TRY(measure_layer(pass, -1));
    for (const Candidate& candidate : candidates_) out_.entries.push_back(candidate.entry);
    return std::move(out_);
  }

 private:
  static int threads(const SensitivityOptions& options) {
    return options.threads > 0 ? options.threads : available_cores();
  }

  Result<void> prepare(std::string_view text) {
    isa_ = options_.isa.value_or(best_isa());
    if (!isa_available(isa_))
      return fail({.what = fmt::format("this machine cannot run --isa {}", isa_name(isa_)),
                   .where = "--isa",
                   .expected = fmt::format("{} or below", isa_name(best_isa()))});
    OCTAVO_TRY(find_scheme(options_.base));  // "auto" is none
    OCTAVO_ASSIGN(base_, resolve_plan(checkpoint_, {.scheme = options_.base}));
    OCTAVO_ASSIGN(const Tokenizer tokenizer, Tokenizer::open(checkpoint_.path()));
    OCTAVO_ASSIGN(windows_, cut_windows(tokenizer, config_, text, options_.windows));
    if (windows_.count < 2)
      return fail({.what = "one window says nothing of the error of what is measured",
                   .found = fmt::format("{} tokens of text", windows_.tokens.size()),
                   .expected = fmt::format("at least two windows of {} tokens", windows_.context),
                   .remedy = "take more --tokens, a longer text, or a smaller --context"});
    out_.model = config_.shape();
    out_.base = options_.base;
    out_.tokens = windows_.count * windows_.context;
    out_.context = windows_.context;
    for (const LinearModule& module : config_.linear_modules())
      out_.base_bytes += stored_bytes(module, base_.linear(module.name).weight, base_.linear(module.name).outliers);
    return list_candidates();
  }

  // In the order of the file: layer by layer, role by role, the head last.
  Result<void> list_candidates() {
    for (const std::string& name : options_.schemes) {
      OCTAVO_ASSIGN(const Scheme* scheme, find_scheme(name));
      OCTAVO_TRY(check_scheme(*scheme, base_, config_, isa_));
    }
    for (const std::string& name : options_.kv) OCTAVO_TRY(kv_format(name));
    int layer = 0;
    for (const LinearModule& module : config_.linear_modules()) {
      if (module.layer != layer) add_cache(layer);
      layer = module.layer;
      if (module.role == Role::kRouter) continue;
      for (const std::string& name : options_.schemes) {
        const Scheme& scheme = **find_scheme(name);
        const LinearPlan& wide = base_.linear(module.name);
        if (scheme.weight == wide.weight && scheme.activation == wide.activation)
          continue;  // the head of a lowered base
        Candidate& candidate = of_role(module, name);
        candidate.entry.bytes += stored_bytes(module, scheme.weight, wide.outliers);
        candidate.entry.base_bytes += stored_bytes(module, wide.weight, wide.outliers);
      }
    }
    return {};
  }

  // Experts are lowered together.
  Candidate& of_role(const LinearModule& module, const std::string& scheme) {
    if (module.expert > 0)
      for (Candidate& known : candidates_)
        if (known.entry.layer == module.layer && known.side == Side::kWeight && known.role == module.role &&
            known.entry.scheme == scheme)
          return known;
    Candidate& candidate = add(module.layer, std::string(role_name(module.role)), scheme);
    candidate.role = module.role;
    return candidate;
  }

  void add_cache(int layer) {
    const KvPlan& base = base_.kv[static_cast<size_t>(layer)];
    for (const Side side : {Side::kKeys, Side::kValues})
      for (const std::string& name : options_.kv) {
        const TensorFormat format = *kv_format(name), &wide = side == Side::kKeys ? base.k : base.v;
        if (format == wide) continue;
        Candidate& candidate = add(layer, std::string(side == Side::kKeys ? kKeyCache : kValueCache), name);
        candidate.side = side;
        candidate.entry.bytes = cache_bytes(config_, format);
        candidate.entry.base_bytes = cache_bytes(config_, wide);
      }
  }

  Candidate& add(int layer, std::string role, const std::string& scheme) {
    Candidate& candidate = candidates_.emplace_back();
    candidate.entry.layer = layer;
    candidate.entry.role = std::move(role);
    candidate.entry.scheme = scheme;
    done_.push_back(false);
    return candidate;
  }

  // The base's perplexity, which is recomputed, stands for weights, text and instruction set.
  Result<void> open_log(std::string_view text) {
    if (options_.log.empty()) return {};
    const Json identity = {{"octavo_sensitivity_log", 1},
                           {"model", json_of(out_.model)},
                           {"base", out_.base},
                           {"tokens", out_.tokens},
                           {"context", out_.context},
                           {"text", text_hash({std::string(text)})},
                           {"isa", isa_name(isa_)},
                           {"base_perplexity", out_.base_perplexity},
                           {"plan", plan_fingerprint(base_, checkpoint_)}};
    OCTAVO_ASSIGN(ItemLog log, ItemLog::open(options_.log, identity));
    log_.emplace(std::move(log));
    for (const Json& line : log_->done()) {
      OCTAVO_ASSIGN(const SensitivityEntry entry, read_sensitivity_entry(line, options_.log.string()));
      for (size_t i = 0; i < candidates_.size(); ++i) {
        SensitivityEntry& known = candidates_[i].entry;
        if (known.layer != entry.layer || known.role != entry.role || known.scheme != entry.scheme) continue;
        known = entry;
        done_[i] = true;
      }
    }
    return {};
  }

  void count_work(const SensitivityPass& pass) {
    last_open_ = -1;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (done_[i]) continue;
      last_open_ = std::max(last_open_, candidates_[i].entry.layer);
      total_ += pass.cost(candidates_[i].entry.layer);
    }
    total_ += static_cast<double>((last_open_ + 1) * windows_.count);
  }

  void worked(double units) {
    work_ += units;
    if (progress_) progress_(std::min(work_, total_), total_, what_);
  }

  Result<void> measure_layer(SensitivityPass& pass, int layer) {
    std::vector<size_t> open;
    for (size_t i = 0; i < candidates_.size(); ++i)
      if (candidates_[i].entry.layer == layer && !done_[i]) open.push_back(i);
    for (size_t begin = 0; begin < open.size(); begin += kTogether)
      OCTAVO_TRY(measure(pass, std::span(open).subspan(begin, std::min(kTogether, open.size() - begin))));
    return {};
  }

  Result<void> measure(SensitivityPass& pass, std::span<const size_t> batch) {
    std::vector<LayerChange> changes;
    for (const size_t i : batch) {
      OCTAVO_ASSIGN(LayerChange change, load(pass, candidates_[i]));
      changes.push_back(std::move(change));
    }
    const bool head = candidates_[batch[0]].entry.layer < 0;
    OCTAVO_TRY(head ? pass.measure_head(changes) : pass.measure(changes));
    std::vector<Json> records;
    for (size_t c = 0; c < batch.size(); ++c) {
      SensitivityEntry& entry = candidates_[batch[c]].entry;
      const CompareResult result = changes[c].totals.result(windows_.context);
      entry.perplexity_change = result.perplexity_change();
      entry.perplexity_change_error = result.perplexity_change_standard_error();
      entry.kl = result.kl_mean;
      entry.output_error = changes[c].output_error / static_cast<double>(out_.tokens);
      records.push_back(json_of(entry));
      done_[batch[c]] = true;
    }
    return log_ ? log_->append(records) : Result<void>{};
  }

  Result<LayerChange> load(const SensitivityPass& pass, const Candidate& candidate) const {
    const SensitivityEntry& entry = candidate.entry;
    PrecisionPlan plan = base_;
    std::optional<Role> role;
    if (candidate.side == Side::kWeight) {
      const Scheme* scheme = *find_scheme(entry.scheme);
      role = candidate.role;
      for (const LinearModule& module : config_.linear_modules())
        if (module.layer == entry.layer && module.role == *role)
          plan.linears[module.name] = {scheme->weight, scheme->activation, "lowered",
                                       plan.linear(module.name).outliers};
    } else {
      KvPlan& kv = plan.kv[static_cast<size_t>(entry.layer)];
      (candidate.side == Side::kKeys ? kv.k : kv.v) = *kv_format(entry.scheme);
    }
    OCTAVO_ASSIGN(LayerChange change, pass.load(plan, entry.layer, role));
    change.name =
        fmt::format("{}{} {}", entry.layer < 0 ? "" : fmt::format("layer {} ", entry.layer), entry.role, entry.scheme);
    return change;
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_ = checkpoint_.config();
  const SensitivityOptions& options_;
  const std::function<void(double, double, std::string_view)>& progress_;
  ThreadPool pool_;
  Isa isa_ = Isa::kReference;
  PrecisionPlan base_;
  TextWindows windows_;
  std::vector<Candidate> candidates_;
  std::vector<bool> done_;
  std::optional<ItemLog> log_;
  int last_open_ = -1;
  double work_ = 0, total_ = 0;
  std::string what_;
  Sensitivity out_;
};

}  // namespace

Result<Sensitivity> measure_sensitivity(const std::filesystem::path& model, std::string_view text,
                                        const SensitivityOptions& options,
                                        const std::function<void(double, double, std::string_view)>& progress) {
  OCTAVO_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(model));
  return Measurement(checkpoint, options, progress).run(text);
}

}  // namespace octavo
