// What the plan fuzzer does with an input: reads it as a plan file. One that is accepted must come back the same from
// what is written for it, and gives a plan of its own model or a refusal.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/check.h"
#include "precision/plan_file.h"

namespace octavo {

inline void fuzz_plan_file(std::span<const std::byte> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  const auto plan = parse_plan_file(text, "plan.json");
  if (!plan) return;
  const std::string written = plan_file_text(*plan);
  const auto back = parse_plan_file(written, "plan.json");
  OCTAVO_CHECK(back.has_value() && back->model == plan->model && back->base == plan->base &&
                   back->linears == plan->linears && back->kv == plan->kv,
               "{}\n{}", back ? "differs" : back.error().message(), written);
  std::vector<LinearModule> modules;
  for (const auto& [name, scheme] : plan->linears) modules.push_back({name, Role::kQ, 0, 64, 64});
  (void)make_plan(modules, plan->model, *plan);
}

}  // namespace octavo
