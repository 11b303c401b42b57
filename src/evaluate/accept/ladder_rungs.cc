#include <fmt/format.h>

#include <algorithm>

#include "evaluate/accept/accept_parts.h"
#include "evaluate/batch_speed.h"

namespace octavo {
namespace {

Json memory_json(const Model& model) {
  const LoadReport& report = model.decoder().report();
  const auto weights = static_cast<double>(report.linear_bytes + report.norm_bytes),
             embedding = static_cast<double>(report.embedding_bytes), kv = model.kv_geometry().bytes_per_token();
  const auto context = static_cast<double>(model.config().context_length());
  return {{"weight_bytes", weights},
          {"embedding_bytes", embedding},
          {"kv_bytes_per_token", kv},
          {"memory_bytes", weights + embedding + kv * context}};
}

// What is kept of the rounds.
struct Rounds {
  std::vector<double> ttft, tpot, prefill_share, decode_share, throughput;

  void add(const SpeedResult& result) {
    ttft.push_back(result.ttft_seconds);
    tpot.push_back(result.tpot_seconds);
    prefill_share.push_back(result.prefill.roofline_share);
    decode_share.push_back(result.decode.roofline_share);
  }
};

Json speed_json(const Rounds& rounds, int64_t prompt) {
  const double ttft = median(rounds.ttft), tpot = median(rounds.tpot);
  Json out = {{"ttft_seconds", ttft},
              {"ttft_spread", spread(rounds.ttft)},
              {"tpot_seconds", tpot},
              {"tpot_spread", spread(rounds.tpot)},
              {"prefill_tokens_per_second", static_cast<double>(prompt) / ttft},
              {"decode_tokens_per_second", 1 / tpot},
              {"prefill_roofline_share", median(rounds.prefill_share)},
              {"decode_roofline_share", median(rounds.decode_share)}};
  if (!rounds.throughput.empty()) {
    out["throughput_tokens_per_second"] = median(rounds.throughput);
    out["throughput_spread"] = spread(rounds.throughput);
  }
  return out;
}

double median_ratio(const std::vector<double>& over, const std::vector<double>& under) {
  std::vector<double> ratios;
  for (size_t i = 0; i < over.size(); ++i) ratios.push_back(over[i] / under[i]);
  return median(std::move(ratios));
}

std::string title_of(const LoweredPart& part, bool first) {
  const std::string plus = first ? "" : "+ ";
  if (part.part == "weights") return "weights";
  if (part.part == "activations" || part.part == "weights and activations") return plus + "activations";
  return plus + "KV cache";
}

// Of the parts of an error budget, the steps of a ladder: each lowers more than the one before it.
bool is_step(const std::vector<LoweredPart>& parts, const LoweredPart& part) {
  const auto has = [&](std::string_view name) {
    return std::any_of(parts.begin(), parts.end(), [&](const LoweredPart& each) { return each.part == name; });
  };
  const bool kv = has("K") || has("V");
  if (part.part == "weights") return has("activations") || kv;
  if (part.part == "weights and activations") return has("activations") && has("weights") && kv;
  if (part.part == "activations") return !has("weights") && kv;
  return false;
}

// What the named parts lower.
std::string formats_of(const std::vector<LoweredPart>& parts, std::initializer_list<std::string_view> names) {
  std::string text;
  for (const std::string_view name : names)
    for (const LoweredPart& part : parts)
      if (part.part == name) text += (text.empty() ? "" : ", ") + part.formats;
  return text;
}

std::string last_title(const std::vector<LoweredPart>& parts, size_t rungs) {
  std::string title;
  for (const LoweredPart& part : parts) {
    if (part.part == "K" || part.part == "V") return rungs > 1 ? "+ KV cache" : "KV cache";
    if (part.part == "activations") title = rungs > 1 ? "+ activations" : "activations";
    if (part.part == "weights" && title.empty()) title = "weights";
  }
  return title.empty() ? "candidate" : title;
}

}  // namespace

Result<std::vector<LadderRung>> ladder_of(const ModelSpec& base, const ModelSpec& candidate) {
  std::vector<LadderRung> rungs = {{.title = "base", .spec = base}};
  const auto parts = lowered_parts(base, candidate);
  if (!parts) {
    rungs.push_back({.title = "candidate", .spec = candidate, .part = "all"});
    return rungs;
  }
  for (const LoweredPart& part : *parts)
    if (is_step(*parts, part)) {
      const bool weights = part.part == "weights";
      rungs.push_back({title_of(part, rungs.size() == 1), formats_of(*parts, {weights ? "weights" : "activations"}),
                       part.spec, part.why_not, part.part});
    }
  LadderRung last{.title = last_title(*parts, rungs.size()), .spec = candidate, .part = "all"};
  const bool kv = last.title.ends_with("KV cache"), activations = last.title.ends_with("activations");
  last.formats = kv ? formats_of(*parts, {"K", "V"}) : formats_of(*parts, {activations ? "activations" : "weights"});
  if (!parts->empty()) last.why_not = parts->back().why_not;
  rungs.push_back(std::move(last));
  return rungs;
}

Result<Json> measure_rung(Model& base, const ModelSpec& rung, const SpeedOptions& options, int64_t batch,
                          const std::function<void(int64_t, int64_t)>& progress) {
  OCTAVO_ASSIGN(const std::unique_ptr<Model> model, Model::load(rung.path, rung.options));
  Json out = {{"memory", memory_json(*model)}, {"base_memory", memory_json(base)}};
  if (options.repeat < 1) return out;
  SpeedOptions once = options;
  once.repeat = 1;  // each has a round of its own before it, that warms what the other one cooled
  once.decode_after_prompt = true;
  struct Side {
    Model* model;
    Rounds rounds;
  };
  Side sides[] = {{&base, {}}, {model.get(), {}}};
  for (int i = 0; i < options.repeat; ++i)
    for (int s = 0; s < 2; ++s) {
      progress(2 * i + s, 2 * options.repeat);
      OCTAVO_ASSIGN(const SpeedResult speed, measure_speed(*sides[s].model, once));
      sides[s].rounds.add(speed);
      if (batch < 1) continue;
      OCTAVO_ASSIGN(const BatchSpeedResult together,
                    measure_batch_speed(*sides[s].model, {.batch = batch,
                                                          .prompt = options.prompt,
                                                          .generate = options.generate,
                                                          .repeat = 1,
                                                          .warm_up = i == 0,
                                                          .roofline = false}));  // long enough to be warm later on
      sides[s].rounds.throughput.push_back(together.output);
    }
  progress(1, 1);
  const Rounds &of_base = sides[0].rounds, &of_rung = sides[1].rounds;
  out["speed"] = speed_json(of_rung, options.prompt);
  out["base_speed"] = speed_json(of_base, options.prompt);
  out["ratios"] = {{"ttft_ratio", median_ratio(of_rung.ttft, of_base.ttft)},
                   {"tpot_ratio", median_ratio(of_rung.tpot, of_base.tpot)}};
  if (batch > 0) out["ratios"]["throughput_ratio"] = median_ratio(of_rung.throughput, of_base.throughput);
  return out;
}

}  // namespace octavo
