// Flags that several commands share.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "cli/flags.h"
#include "engine/model.h"

namespace octavo {

struct OutputOptions {
  bool json = false;
  void declare(Flags& flags) { flags.flag("json", json, "Print one JSON object on stdout"); }
};

// --threads, --isa
struct MachineOptions {
  int threads = 0;
  std::string isa;
  void declare(Flags& flags);
  Result<void> apply(ModelOptions& options) const;
};

// --no-greedy-head: of commands that generate.
struct GreedyHeadFlag {
  bool off = false;
  void declare(Flags& flags);
};

// MODEL, --quantization, --plan, --kv-cache-dtype, --k-dtype, --v-dtype, --kv-calibration, --ignore, --override
struct ModelFlags {
  std::string model;
  MachineOptions machine;
  PlanRequest plan;
  std::string plan_file;
  std::vector<std::string> overrides;  // RULE=SCHEME
  void declare(Flags& flags, std::string_view argument = "MODEL",
               std::string_view help = "A model folder (config.json, *.safetensors) or a .gguf file");
  // Loads with progress on stderr (none when quiet).
  Result<std::unique_ptr<Model>> load(bool quiet, bool text = true, bool greedy_head = false) const;
  Result<PlanRequest> request() const;
};

// What the KV cache's stored scales clipped while the model ran: as JSON, and a line on stderr where it is anything.
Json kv_clipped_json(const Model& model);
void tell_kv_clipped(const Model& model);

// The file of --plan FILE; nullptr where it is empty. What it says beside other flags is checked with the model.
Result<std::shared_ptr<const PlanFile>> open_plan(const std::string& path);

// The rules of repeated --override RULE=SCHEME.
Result<std::vector<std::pair<std::string, std::string>>> parse_overrides(const std::vector<std::string>& texts);

}  // namespace octavo
