#include "evaluate/plan_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/check.h"

namespace octavo {
namespace {

constexpr int64_t kQuanta = 65536;

const SensitivityEntry* find_entry(const Sensitivity& s, int layer, std::string_view role, std::string_view scheme) {
  for (const SensitivityEntry& entry : s.entries)
    if (entry.layer == layer && entry.role == role && entry.scheme == scheme) return &entry;
  return nullptr;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The KV format of a scheme, by its name.
std::string kv_name_of(std::string_view scheme) {
  const auto found = find_scheme(scheme);
  for (const char* name : {"bf16", "float32", "fp8_e4m3", "fp8_e5m2", "int8"})
    if (found && *kv_format(name) == (*found)->kv) return name;
  OCTAVO_CHECK(false, "no KV format of scheme {}", scheme);
}

}  // namespace

Result<PlanBudget> parse_budget(std::string_view text) {
  struct Suffix {
    std::string_view name;
    PlanBudget::Kind kind;
    double factor;
  };
  constexpr Suffix kSuffixes[] = {{"bpw", PlanBudget::Kind::kBitsPerWeight, 1},
                                  {"ms", PlanBudget::Kind::kMilliseconds, 1},
                                  {"kB", PlanBudget::Kind::kBytes, 1e3},
                                  {"MB", PlanBudget::Kind::kBytes, 1e6},
                                  {"GB", PlanBudget::Kind::kBytes, 1e9}};
  for (const Suffix& suffix : kSuffixes) {
    if (!text.ends_with(suffix.name)) continue;
    const std::string_view digits = text.substr(0, text.size() - suffix.name.size());
    double value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error == std::errc() && end == digits.data() + digits.size() && value > 0 && value < 1e9)
      return PlanBudget{suffix.kind, value * suffix.factor};
  }
  return fail({.what = "not a budget",
               .where = "--budget",
               .found = std::string(text),
               .expected = "bits per weight, bytes or time per token: 5.5bpw, 90MB, 4.5ms"});
}

Result<void> check_budget(const PlanBudget& budget, int64_t depth) {
  if (depth == 0 || budget.kind != PlanBudget::Kind::kBitsPerWeight) return {};
  return fail({.what = "bits per weight do not say how large a KV cache may be",
               .where = "--depth, --budget",
               .found = fmt::format("{:g}bpw", budget.value),
               .remedy = "with --depth give bytes or a time, such as 90MB or 4.5ms; or leave --depth out"});
}

std::vector<double> kl_floors(const Sensitivity& s) {
  std::vector<double> floors(static_cast<size_t>(s.model.layers), std::numeric_limits<double>::infinity());
  for (const SensitivityEntry& entry : s.entries)
    if (entry.layer >= 0)
      floors[static_cast<size_t>(entry.layer)] = std::min(floors[static_cast<size_t>(entry.layer)], entry.kl);
  for (size_t i = 1; i < floors.size(); ++i) floors[i] = std::min(floors[i], floors[i - 1]);
  for (double& floor : floors)
    if (std::isinf(floor)) floor = 0;  // nothing was measured so far
  return floors;
}

// What an entry costs: after the head no rounding follows.
double PlanSearch::excess(const SensitivityEntry& entry) const {
  return entry.layer < 0 ? entry.kl : std::max(0.0, entry.kl - floors_[static_cast<size_t>(entry.layer)]);
}

// All modules in one unit, under each scheme that was measured of all of them.
void PlanSearch::add_unit(const Sensitivity& s, int layer, const std::vector<const LinearModule*>& modules) {
  Unit unit{.layer = layer};
  unit.options.resize(1);
  for (const LinearModule* module : modules) {
    const std::string role(role_name(module->role));  // experts have it in common
    if (std::find(unit.roles.begin(), unit.roles.end(), role) == unit.roles.end()) unit.roles.push_back(role);
    unit.weights += module->rows * module->cols;
  }
  for (const std::string& scheme : schemes_) {
    Option option{.scheme = scheme};
    int64_t base_bytes = 0;
    bool whole = true;
    for (const std::string& role : unit.roles) {
      const SensitivityEntry* entry = find_entry(s, layer, role, scheme);
      if (entry == nullptr) {
        whole = false;
        break;
      }
      option.bytes += entry->bytes;
      option.kl += excess(*entry);
      option.log_change += std::log1p(entry->perplexity_change);
      base_bytes += entry->base_bytes;
    }
    if (!whole) continue;
    unit.options[0].bytes = base_bytes;
    unit.options.push_back(std::move(option));
  }
  unit.options[0].scheme = base_;
  if (unit.options.size() == 1) return;
  fixed_bytes_ -= unit.options[0].bytes;
  weights_ += unit.weights;
  units_.push_back(std::move(unit));
}

bool PlanSearch::add_cache(const Sensitivity& s, int layer, std::string_view role, int64_t depth) {
  Unit unit{.layer = layer, .roles = {std::string(role)}};
  unit.options.resize(1);
  for (const SensitivityEntry& entry : s.entries) {
    if (entry.layer != layer || entry.role != role) continue;
    unit.options[0].bytes = entry.base_bytes * depth;
    unit.options.push_back({entry.scheme, entry.bytes * depth, excess(entry), std::log1p(entry.perplexity_change)});
  }
  if (unit.options.size() == 1) return false;
  units_.push_back(std::move(unit));
  return true;
}

Result<PlanSearch> PlanSearch::create(const Sensitivity& sensitivity, const ModelConfig& config,
                                      const PlanSearchOptions& options, const std::filesystem::path& path) {
  OCTAVO_TRY(check_made_for(sensitivity.model, config.shape(), "the sensitivity file", path));
  PlanSearch search;
  search.model_ = sensitivity.model;
  search.base_ = sensitivity.base;
  search.depth_ = options.depth;
  search.floors_ = kl_floors(sensitivity);
  search.modules_ = config.linear_modules();
  search.fixed_bytes_ = sensitivity.base_bytes;
  const std::vector<std::string> measured = measured_schemes(sensitivity, false);
  search.schemes_ = options.schemes.empty() ? measured : options.schemes;
  for (const std::string& scheme : search.schemes_)
    if (std::find(measured.begin(), measured.end(), scheme) == measured.end())
      return fail({.what = "the sensitivity file does not hold this scheme",
                   .where = path.string(),
                   .found = joined(measured),
                   .expected = scheme,
                   .remedy = fmt::format("measure it: octavo sensitivity MODEL --scheme {}", scheme)});
  std::map<std::pair<int, int>, std::vector<const LinearModule*>> groups;  // layer, group
  for (const LinearModule& module : search.modules_) {
    if (module.role == Role::kRouter || (module.role == Role::kHead && !options.lower_head)) continue;
    const Role first = options.split_fused        ? module.role
                       : module.role <= Role::kV  ? Role::kQ
                       : module.role == Role::kUp ? Role::kGate
                                                  : module.role;
    groups[{module.layer < 0 ? static_cast<int>(config.num_layers) : module.layer, static_cast<int>(first)}].push_back(
        &module);
  }
  for (const auto& [key, modules] : groups) search.add_unit(sensitivity, modules[0]->layer, modules);
  if (options.depth > 0)
    for (int layer = 0; layer < static_cast<int>(config.num_layers); ++layer)
      for (const std::string_view role : {kKeyCache, kValueCache})
        if (!search.add_cache(sensitivity, layer, role, options.depth))
          return fail({.what = "the sensitivity file lacks a side of the KV cache, which --depth counts",
                       .where = path.string(),
                       .expected = fmt::format("layer {}, {}", layer, role),
                       .remedy = "measure it: octavo sensitivity MODEL --kv fp8_e4m3"});
  if (search.units_.empty())
    return fail({.what = "the sensitivity file holds nothing to choose from",
                 .where = path.string(),
                 .found = fmt::format("{} entries", sensitivity.entries.size()),
                 .remedy = "finish the measurement: octavo sensitivity MODEL --out FILE --resume"});
  search.solve();
  return search;
}

int64_t PlanSearch::Unit::smallest() const {
  int64_t bytes = options[0].bytes;
  for (const Option& option : options) bytes = std::min(bytes, option.bytes);
  return bytes;
}

int64_t PlanSearch::Unit::largest() const {
  int64_t bytes = options[0].bytes;
  for (const Option& option : options) bytes = std::max(bytes, option.bytes);
  return bytes;
}

int64_t PlanSearch::smallest() const {
  int64_t bytes = fixed_bytes_;
  for (const Unit& unit : units_) bytes += unit.smallest();
  return bytes;
}

int64_t PlanSearch::largest() const {
  int64_t bytes = fixed_bytes_;
  for (const Unit& unit : units_) bytes += unit.largest();
  return bytes;
}

void PlanSearch::solve() {
  const int64_t range = largest() - smallest();
  int64_t common = 0;
  for (const Unit& unit : units_)
    for (const Option& option : unit.options) common = std::gcd(common, option.bytes - unit.smallest());
  // Bytes are rounded up to whole quanta: exact where the common divisor is coarse enough.
  quantum_ = std::max<int64_t>({1, common, (range + kQuanta - 1) / kQuanta});
  const size_t cells = static_cast<size_t>(range / quantum_) + units_.size() + 1;
  std::vector<double> least(cells, 0.0), next(cells);
  for (const Unit& unit : units_) {
    std::vector<uint8_t>& chosen = chosen_.emplace_back(cells, uint8_t{0});
    std::fill(next.begin(), next.end(), std::numeric_limits<double>::infinity());
    for (size_t o = 0; o < unit.options.size(); ++o) {
      const auto cost = static_cast<size_t>((unit.options[o].bytes - unit.smallest() + quantum_ - 1) / quantum_);
      for (size_t c = cost; c < cells; ++c) {
        const double kl = least[c - cost] + unit.options[o].kl;
        if (kl >= next[c]) continue;
        next[c] = kl;
        chosen[c] = static_cast<uint8_t>(o);
      }
    }
    std::swap(least, next);
  }
}

PlanPoint PlanSearch::point(std::vector<size_t> choice) const {
  PlanPoint out{.bytes = fixed_bytes_, .choice = std::move(choice)};
  std::map<std::string_view, int64_t> weights;
  int64_t chosen_bytes = 0;
  double log_change = 0;
  for (size_t u = 0; u < units_.size(); ++u) {
    const Option& option = units_[u].options[out.choice[u]];
    out.bytes += option.bytes;
    out.kl += option.kl;
    log_change += option.log_change;
    if (units_[u].weights == 0) continue;
    weights[option.scheme] += units_[u].weights;
    chosen_bytes += option.bytes;
  }
  out.perplexity_change = std::expm1(log_change);
  out.bits_per_weight = 8 * static_cast<double>(chosen_bytes) / static_cast<double>(weights_);
  std::vector<std::string> order{base_};
  order.insert(order.end(), schemes_.begin(), schemes_.end());
  for (const std::string& scheme : order)
    if (const auto found = weights.find(scheme); found != weights.end())
      out.shares.emplace_back(scheme, static_cast<double>(found->second) / static_cast<double>(weights_));
  return out;
}

// Rounding up may leave bytes unused: single changes that still fit, the one that saves most first.
void PlanSearch::use_what_is_left(std::vector<size_t>& choice, int64_t bytes) const {
  int64_t left = bytes - point(choice).bytes;
  for (bool changed = true; changed;) {
    changed = false;
    double saved = 0;
    size_t unit = 0, to = 0;
    for (size_t u = 0; u < units_.size(); ++u) {
      const Option& now = units_[u].options[choice[u]];
      for (size_t o = 0; o < units_[u].options.size(); ++o) {
        const Option& other = units_[u].options[o];
        if (other.bytes - now.bytes > left || now.kl - other.kl <= saved) continue;
        saved = now.kl - other.kl;
        unit = u;
        to = o;
      }
    }
    if (saved <= 0) break;
    left -= units_[unit].options[to].bytes - units_[unit].options[choice[unit]].bytes;
    choice[unit] = to;
    changed = true;
  }
}

Result<PlanPoint> PlanSearch::best(int64_t bytes) const {
  const int64_t least = smallest();
  if (bytes < least)
    return fail({.what = "no plan is small enough for the budget",
                 .where = "--budget",
                 .found = fmt::format("{:.3f} MB", static_cast<double>(bytes) / 1e6),
                 .expected = fmt::format("at least {:.3f} MB", static_cast<double>(least) / 1e6),
                 .remedy = "raise it, or measure a smaller scheme: octavo sensitivity MODEL --scheme int4"});
  std::vector<size_t> choice(units_.size());
  const size_t cells = chosen_[0].size();
  size_t left = bytes >= largest() ? cells - 1 : static_cast<size_t>((bytes - least) / quantum_);
  for (size_t u = units_.size(); u-- > 0;) {
    choice[u] = chosen_[u][left];
    left -= static_cast<size_t>((units_[u].options[choice[u]].bytes - units_[u].smallest() + quantum_ - 1) / quantum_);
  }
  use_what_is_left(choice, bytes);
  return point(std::move(choice));
}

std::vector<PlanPoint> PlanSearch::pareto(int count) const {
  std::vector<PlanPoint> points;
  const int64_t least = smallest(), range = largest() - least;
  for (int i = 0; i < count; ++i) {
    auto found = best(least + range * i / std::max(1, count - 1));
    OCTAVO_CHECK(found.has_value(), "a budget within the range");
    if (points.empty() || found->bytes > points.back().bytes) points.push_back(std::move(*found));
  }
  return points;
}

std::vector<std::pair<std::string, PlanPoint>> PlanSearch::uniform() const {
  std::vector<std::pair<std::string, PlanPoint>> out;
  std::vector<std::string> names{base_};
  names.insert(names.end(), schemes_.begin(), schemes_.end());
  for (const std::string& name : names) {
    std::vector<size_t> choice(units_.size(), 0);
    bool whole = true;
    for (size_t u = 0; u < units_.size(); ++u) {
      const auto& options = units_[u].options;
      if (units_[u].weights == 0) continue;
      const auto found =
          std::find_if(options.begin(), options.end(), [&](const Option& o) { return o.scheme == name; });
      whole = whole && found != options.end();
      if (found != options.end()) choice[u] = static_cast<size_t>(found - options.begin());
    }
    if (whole) out.emplace_back(name, point(std::move(choice)));
  }
  return out;
}

Result<int64_t> PlanSearch::bytes_of(const PlanBudget& budget, double read_gb_s) const {
  OCTAVO_TRY(check_budget(budget, depth_));
  double bytes = budget.value;
  if (budget.kind == PlanBudget::Kind::kMilliseconds) bytes = budget.value * 1e-3 * read_gb_s * 1e9;
  if (budget.kind == PlanBudget::Kind::kBitsPerWeight)
    bytes = budget.value / 8 * static_cast<double>(weights_) + static_cast<double>(fixed_bytes_);
  return static_cast<int64_t>(std::min(std::floor(bytes), 9e18));
}

PlanFile PlanSearch::plan(const PlanPoint& point) const {
  PlanFile file{.model = model_, .base = base_};
  const std::string kv = kv_name_of(base_);
  file.kv.assign(static_cast<size_t>(model_.layers), {kv, kv});
  for (const LinearModule& module : modules_) {
    std::string scheme = base_;
    // The head stays BF16 in a scheme's plan.
    if (module.role == Role::kHead) scheme = base_ == "float32" ? "float32" : "bf16";
    if (module.role == Role::kRouter) scheme = "float32";
    for (size_t u = 0; u < units_.size(); ++u) {
      const Unit& unit = units_[u];
      if (unit.layer != module.layer || unit.weights == 0 || point.choice[u] == 0) continue;
      if (std::find(unit.roles.begin(), unit.roles.end(), role_name(module.role)) != unit.roles.end())
        scheme = unit.options[point.choice[u]].scheme;
    }
    file.linears.emplace_back(module.name, std::move(scheme));
  }
  for (size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].weights != 0 || point.choice[u] == 0) continue;
    KvNames& names = file.kv[static_cast<size_t>(units_[u].layer)];
    (units_[u].roles[0] == kKeyCache ? names.k : names.v) = units_[u].options[point.choice[u]].scheme;
  }
  return file;
}

}  // namespace octavo
