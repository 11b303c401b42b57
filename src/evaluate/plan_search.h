// The best plan for a budget, from what each tensor costs when it alone is lowered.
//
// The model is additive: the KL of a plan is the sum of its tensors' (to second order the KL is a quadratic form of the
// logits' error, and errors of different tensors are next to uncorrelated), its bytes are the sum of theirs. Of each
// tensor's KL counts what lies above a floor: any change, however small, lets the BF16 roundings after it fall
// otherwise; that is a divergence, but no loss, and it comes once, not once per tensor. What is searched is then a
// knapsack with one choice per unit, solved by dynamic programming over the bytes. A unit is what other engines load in
// one format: q, k and v of a layer, gate and up, o, down, keys, values.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "evaluate/sensitivity_file.h"
#include "precision/plan_file.h"

namespace octavo {

// Bytes of all linear weights; bits per weight of those that the search decides; or milliseconds per token, which is
// bytes by what the memory reads.
struct PlanBudget {
  enum class Kind : uint8_t { kBytes, kBitsPerWeight, kMilliseconds } kind = Kind::kBytes;
  double value = 0;
};
Result<PlanBudget> parse_budget(std::string_view text);  // "90MB", "1.2GB", "5.5bpw", "4.5ms"

// Error: bits per weight beside a depth whose cache counts: they do not say how large that may be.
Result<void> check_budget(const PlanBudget& budget, int64_t depth);

struct PlanSearchOptions {
  std::vector<std::string> schemes;  // of those in the file; empty: all
  bool split_fused = false;          // q, k, v and gate, up each in a format of its own
  bool lower_head = false;           // else it stays as the base has it
  int64_t depth = 0;                 // tokens of context whose cache counts with the bytes; 0: the cache stays as it is
};

// The floor of each layer. It falls with the layers, since fewer roundings follow: the least KL that was measured in
// the layer or before it. What is left of the least tensor is 0: it cannot be told from a change of nothing.
std::vector<double> kl_floors(const Sensitivity& sensitivity);

// What a plan takes and costs, by the additive model.
struct PlanPoint {
  double loss() const { return std::expm1(kl); }  // of perplexity, as of an entry

  int64_t bytes = 0;             // of all linear weights, and of the cache at the depth
  double bits_per_weight = 0;    // of the layers that the search decides
  double kl = 0;                 // above the floors
  double perplexity_change = 0;  // the tensors' own changes multiplied: the sum of their noise as well
  std::vector<size_t> choice;    // of each unit
  std::vector<std::pair<std::string, double>> shares;  // scheme, share of those layers' weights; in the file's order
};

class PlanSearch {
 public:
  // Error: a sensitivity file of another model, a scheme that it does not hold, nothing to choose.
  static Result<PlanSearch> create(const Sensitivity& sensitivity, const ModelConfig& config,
                                   const PlanSearchOptions& options, const std::filesystem::path& path);

  // The plan of least KL within `bytes`. The optimum up to a 65536th of the range of bytes, never above the budget.
  // Error: the smallest plan is larger.
  Result<PlanPoint> best(int64_t bytes) const;
  // Plans of budgets spread over the range, smallest first.
  std::vector<PlanPoint> pareto(int count) const;
  // Each scheme for everything, where the file has all of it; the base first. The cache as the base has it.
  std::vector<std::pair<std::string, PlanPoint>> uniform() const;

  int64_t smallest() const;
  int64_t largest() const;
  // Of all that counts. Error: as check_budget().
  Result<int64_t> bytes_of(const PlanBudget& budget, double read_gb_s) const;
  PlanFile plan(const PlanPoint& point) const;

 private:
  struct Option {
    std::string scheme;
    int64_t bytes = 0;
    double kl = 0, log_change = 0;
  };
  struct Unit {
    int layer = 0;
    std::vector<std::string> roles;
    int64_t weights = 0;          // 0: a side of the cache
    std::vector<Option> options;  // the base's first

    int64_t smallest() const;
    int64_t largest() const;
  };

  PlanSearch() = default;
  void add_unit(const Sensitivity& sensitivity, int layer, const std::vector<const LinearModule*>& modules);
  bool add_cache(const Sensitivity& sensitivity, int layer, std::string_view role, int64_t depth);
  double excess(const SensitivityEntry& entry) const;
  void solve();
  PlanPoint point(std::vector<size_t> choice) const;
  void use_what_is_left(std::vector<size_t>& choice, int64_t bytes) const;

  std::vector<Unit> units_;
  std::vector<std::string> schemes_;
  std::vector<double> floors_;
  ModelShape model_;
  std::string base_;
  std::vector<LinearModule> modules_;
  int64_t depth_ = 0;
  int64_t fixed_bytes_ = 0;  // of what is not searched
  int64_t weights_ = 0;      // of what is

  // chosen_[unit][c]: the choice of the best plan of the units so far within c quanta above their smallest.
  int64_t quantum_ = 1;
  std::vector<std::vector<uint8_t>> chosen_;
};

}  // namespace octavo
