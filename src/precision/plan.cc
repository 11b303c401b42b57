#include "precision/plan.h"

#include <fmt/format.h>

#include <array>

#include "base/check.h"
#include "precision/name_rule.h"
#include "precision/schemes.h"

namespace octavo {
namespace {

constexpr std::array<std::string_view, 9> kRoleNames = {"q_proj",  "k_proj",    "v_proj", "o_proj", "gate_proj",
                                                        "up_proj", "down_proj", "router", "lm_head"};

// A user's rule: a name, a pattern, or a role.
Result<bool> matches(const NameRule& rule, const LinearModule& module) {
  if (rule.text() == role_name(module.role)) return true;
  return rule.matches(module.name);
}

struct Override {
  NameRule rule;
  const Scheme* scheme;
};

// The request with its rules compiled, and which of them have matched something.
struct Rules {
  const Scheme* scheme;
  std::vector<NameRule> ignore;
  std::vector<Override> overrides;
  std::vector<bool> ignore_hit, override_hit;
};

Result<Rules> compile(const PlanRequest& request) {
  Rules rules{};
  OCTAVO_ASSIGN(rules.scheme, find_scheme(request.scheme));
  for (const std::string& text : request.ignore) {
    OCTAVO_ASSIGN(NameRule rule, NameRule::parse(text));
    rules.ignore.push_back(std::move(rule));
  }
  for (const auto& [text, name] : request.overrides) {
    OCTAVO_ASSIGN(NameRule rule, NameRule::parse(text));
    auto scheme = find_scheme(name);
    if (!scheme) {
      Error error = std::move(scheme).error();
      error.where = fmt::format("override '{}'", text);
      return fail(std::move(error));
    }
    rules.overrides.push_back({std::move(rule), *scheme});
  }
  rules.ignore_hit.assign(rules.ignore.size(), false);
  rules.override_hit.assign(rules.overrides.size(), false);
  return rules;
}

LinearPlan wide_plan(const Scheme& scheme, std::string reason) {
  const ElementType element = scheme.weight.element == ElementType::kF32 ? ElementType::kF32 : ElementType::kBf16;
  return {plain_format(element), plain_format(element), std::move(reason)};
}

// Overrides win over ignore rules, the last matching one wins; then the head stays wide.
Result<LinearPlan> plan_module(const LinearModule& module, Rules& rules) {
  const Override* chosen = nullptr;
  for (size_t i = 0; i < rules.overrides.size(); ++i) {
    OCTAVO_ASSIGN(const bool hit, matches(rules.overrides[i].rule, module));
    if (!hit) continue;
    rules.override_hit[i] = true;
    chosen = &rules.overrides[i];
  }
  const NameRule* ignored = nullptr;
  for (size_t i = 0; i < rules.ignore.size(); ++i) {
    OCTAVO_ASSIGN(const bool hit, matches(rules.ignore[i], module));
    if (!hit) continue;
    rules.ignore_hit[i] = true;
    if (ignored == nullptr) ignored = &rules.ignore[i];
  }
  if (chosen != nullptr)
    return LinearPlan{chosen->scheme->weight, chosen->scheme->activation,
                      fmt::format("override {} = {}", chosen->rule.text(), chosen->scheme->name)};
  if (module.role == Role::kRouter)
    return router_plan(ignored != nullptr ? fmt::format("ignored: {}", ignored->text()) : "routers are not lowered");
  if (ignored != nullptr) return wide_plan(*rules.scheme, fmt::format("ignored: {}", ignored->text()));
  if (module.role == Role::kHead) return wide_plan(*rules.scheme, "final logits are not lowered");
  return LinearPlan{rules.scheme->weight, rules.scheme->activation, fmt::format("scheme {}", rules.scheme->name)};
}

}  // namespace

LinearPlan router_plan(std::string reason) {
  return {plain_format(ElementType::kF32), plain_format(ElementType::kF32), std::move(reason)};
}

std::string_view role_name(Role role) {
  return kRoleNames.at(static_cast<size_t>(role));
}

Result<void> check_weight_shape(const LinearModule& module, const TensorFormat& weight) {
  const bool whole_bytes = module.cols * element_bits(weight.element) % 8 == 0;
  if (module.rows > 0 && module.cols > 0 && whole_bytes) return {};
  return fail({.what = "the scheme does not fit the shape of a module",
               .where = module.name,
               .found = fmt::format("{} of [{}, {}]", weight.describe(), module.rows, module.cols),
               .expected = "a positive shape whose rows fill whole bytes",
               .remedy = fmt::format("leave it out with --ignore {}", module.name)});
}

const LinearPlan& PrecisionPlan::linear(std::string_view module) const {
  const auto found = linears.find(module);
  OCTAVO_CHECK(found != linears.end(), "no plan for module {}", module);
  return found->second;
}

Result<bool> rule_matches(std::string_view rule, const LinearModule& module) {
  OCTAVO_ASSIGN(const NameRule compiled, NameRule::parse(rule));
  return matches(compiled, module);
}

Result<PrecisionPlan> make_plan(const std::vector<LinearModule>& modules, int num_layers, const PlanRequest& request) {
  OCTAVO_CHECK(request.file == nullptr, "a plan file needs the model's config");
  OCTAVO_ASSIGN(Rules rules, compile(request));
  PrecisionPlan plan;
  plan.scheme = std::string(rules.scheme->name);
  for (const LinearModule& module : modules) {
    OCTAVO_ASSIGN(LinearPlan linear, plan_module(module, rules));
    OCTAVO_TRY(check_weight_shape(module, linear.weight));
    plan.linears.insert_or_assign(module.name, std::move(linear));
  }
  for (size_t i = 0; i < rules.ignore.size(); ++i)
    if (!rules.ignore_hit[i])
      plan.notes.push_back(fmt::format("ignore rule '{}' matches no module", rules.ignore[i].text()));
  for (size_t i = 0; i < rules.overrides.size(); ++i)
    if (!rules.override_hit[i])
      plan.notes.push_back(fmt::format("override rule '{}' matches no module", rules.overrides[i].rule.text()));
  plan.kv.assign(static_cast<size_t>(num_layers),
                 KvPlan{rules.scheme->kv, rules.scheme->kv, fmt::format("scheme {}", plan.scheme)});
  OCTAVO_TRY(apply_kv_request(plan, request));
  return plan;
}

}  // namespace octavo
