// Gates: the limits that a candidate must keep, and whether it does.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "evaluate/report/figures.h"

namespace octavo {

// A gate is named after the measured quantity and the side on which its limit lies.
struct GateRow {
  std::string_view name;     // "perplexity_change_max"
  std::string_view measure;  // the key in the report's "measured"
  bool is_max;
  std::optional<double> standard;  // the default limit; none: judged only where the file names it
  FigureUnit unit;
  std::string_view title;    // for people
  std::string_view section;  // of the report that shows it: "ladder", "error-budget", "tasks", "needle"
};
const std::vector<GateRow>& gate_rows();

struct Gates {
  std::map<std::string, std::optional<double>, std::less<>> limits;  // none: switched off by the file
  double task_standard_errors = 1;  // a drop counts past its limit and so many standard errors
  double task_items_min = 100;      // with fewer items, whose standard errors are wide, a drop is not judged
};
Gates default_gates();

// {"perplexity_change_max": 0.03, "needle_lost_max": "off", ...} over the defaults. Error: an unknown gate (lists the
// known ones), a limit that is neither a number nor "off", a share or ratio below 0.
Result<Gates> parse_gates(std::string_view json, std::string_view where);

// Adds "gates" and "verdict" to a report from its "measured". A gate without a finite figure does not hold:
// "not computed", with the reason.
void judge(Json& report, const Gates& gates);

}  // namespace octavo
