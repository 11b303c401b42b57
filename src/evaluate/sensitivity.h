// Sensitivity: each layer x role lowered alone under each candidate scheme, everything else as the base has it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model.h"
#include "evaluate/perplexity.h"
#include "evaluate/sensitivity_file.h"

namespace octavo {

struct SensitivityOptions {
  std::string base = "bf16";                   // scheme of everything that is not lowered
  std::vector<std::string> schemes = {"fp8"};  // candidates for the linear layers
  std::vector<std::string> kv = {"fp8_e4m3"};  // candidates for K and for V, each alone
  PerplexityOptions windows;
  int threads = 0;                          // as in ModelOptions
  std::optional<Isa> isa;                   // the same
  int64_t memory_limit = int64_t{1} << 30;  // bytes of hidden states held; more is spilled
  std::filesystem::path spill_folder = ".";
  std::filesystem::path log;  // finished entries, line by line (evaluate/item_log.h); a run goes on where it ended
};

// Numbers are those of compare() between the base's plan and the plan with the one change, bit for bit. Hidden states
// of the base at the entry of a layer are kept: what comes before a changed layer is not run again, and of the weights
// only the changed group is loaded anew. Errors: a scheme that is unknown, is the base's own, needs calibrated scales
// or has no fast kernel here; a text shorter than one window; logits that are not finite (names the change).
Result<Sensitivity> measure_sensitivity(
    const std::filesystem::path& model, std::string_view text, const SensitivityOptions& options,
    const std::function<void(double done, double total, std::string_view what)>& progress = {});

}  // namespace octavo
