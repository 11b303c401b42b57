#include "cli/options.h"

#include <fmt/format.h>

#include "cli/terminal.h"
#include "precision/kv_format.h"

namespace octavo {
namespace {

std::string scheme_names() {
  std::string names;
  for (const Scheme& scheme : schemes()) names += (names.empty() ? "" : ", ") + std::string(scheme.name);
  return names;
}

}  // namespace

void MachineOptions::declare(Flags& flags) {
  flags.group("Machine");
  flags.option("threads", threads, "Threads (0: all cores this process may use)");
  flags.option("isa", isa, "Force an instruction set: reference, avx2, avx512, avx512_bf16");
  flags.group("Options");
}

Result<void> MachineOptions::apply(ModelOptions& options) const {
  if (threads < 0 || threads > 1024)
    return fail({.what = "number of threads is out of range",
                 .where = "--threads",
                 .found = std::to_string(threads),
                 .expected = "0 (all) to 1024"});
  options.threads = threads;
  if (!isa.empty()) {
    OCTAVO_ASSIGN(options.isa, isa_from_name(isa));
  }
  return {};
}

void GreedyHeadFlag::declare(Flags& flags) {
  flags.flag("no-greedy-head", off,
             "Do without the INT8 copy of the head with which greedy decoding finds the same next token sooner");
}

void ModelFlags::declare(Flags& flags, std::string_view argument, std::string_view help) {
  flags.argument(argument, model, help);
  flags.group("Precision");
  flags.option("quantization", plan.scheme, "Scheme: " + scheme_names() + " (default: what the checkpoint says)");
  flags.option("plan", plan_file, "A plan file instead of a scheme: the format of every layer (octavo sensitivity)");
  flags.option("kv-cache-dtype", plan.kv_cache_dtype, fmt::format("KV cache: {}", kv_spelling()));
  flags.option("k-dtype", plan.k_dtype, "Keys alone");
  flags.option("v-dtype", plan.v_dtype, "Values alone");
  flags.option("kv-calibration", plan.kv_calibration, "An octavo_kv.json instead of the one in the model's folder");
  flags.option("ignore", plan.ignore,
               "Keep these modules wide: a name, a role (down_proj), or re:PATTERN; may be repeated");
  flags.option("override", overrides, "RULE=SCHEME: another scheme for these modules; may be repeated");
  machine.declare(flags);
}

Result<std::vector<std::pair<std::string, std::string>>> parse_overrides(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::string>> rules;
  for (const std::string& text : texts) {
    const size_t equals = text.rfind('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
      return fail({.what = "override is not RULE=SCHEME",
                   .where = "--override",
                   .found = text,
                   .expected = "for example re:.*down_proj=bf16"});
    rules.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return rules;
}

Result<PlanRequest> ModelFlags::request() const {
  PlanRequest request = plan;
  OCTAVO_ASSIGN(request.overrides, parse_overrides(overrides));
  OCTAVO_ASSIGN(request.file, open_plan(plan_file));
  return request;
}

Result<std::shared_ptr<const PlanFile>> open_plan(const std::string& path) {
  if (path.empty()) return nullptr;
  OCTAVO_ASSIGN(PlanFile plan, read_plan_file(path));
  return std::make_shared<const PlanFile>(std::move(plan));
}

Result<std::unique_ptr<Model>> ModelFlags::load(bool quiet, bool text, bool greedy_head) const {
  ModelOptions options{.text = text, .greedy_head = greedy_head};
  OCTAVO_TRY(machine.apply(options));
  OCTAVO_ASSIGN(options.plan, request());
  Progress progress("loading", quiet);
  return Model::load(model, options, [&](LoadProgress p) { progress.update(p.done, p.total); });
}

Json kv_clipped_json(const Model& model) {
  const Decoder::KvClipped clipped = model.decoder().kv_clipped();
  return {{"k", clipped.k}, {"v", clipped.v}};
}

void tell_kv_clipped(const Model& model) {
  const Decoder::KvClipped clipped = model.decoder().kv_clipped();
  if (clipped.k + clipped.v == 0) return;
  fmt::print(
      stderr,
      "note: the KV cache's stored scales clipped {} keys and {} values (each of a token and head): calibrate on "
      "text like this one, or let --kv-cache-dtype fp8_e4m3:dynamic compute them\n",
      clipped.k, clipped.v);
}

}  // namespace octavo
