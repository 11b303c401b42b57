// What `octavo sensitivity` shows on a terminal, within 80 columns.
#pragma once

#include <string>
#include <vector>

#include "evaluate/plan_search.h"
#include "evaluate/sensitivity_file.h"

namespace octavo {

// Layers down, roles across: the loss in per cent behind the sign of its class. A table per scheme; the KV formats
// stand beside the first ones. `colour`: classes in colour.
std::string sensitivity_table(const Sensitivity& sensitivity, bool colour);
// How many tensors of each scheme are in each class, and the costliest ones.
std::string sensitivity_summary(const Sensitivity& sensitivity);

struct PlanRow {
  std::string label;  // "", "uniform fp8", "> 5.5bpw"
  PlanPoint point;
};
// `read_gb_s`: 0 leaves out the times.
std::string plan_table(const std::vector<PlanRow>& rows, double read_gb_s);

}  // namespace octavo
