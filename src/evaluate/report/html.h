// The acceptance report as a page that stands alone, and as a section of a model card: both from its JSON and nothing
// else.
#pragma once

#include <string>

#include "base/json.h"

namespace octavo {

// report: of measure_acceptance() and judge().
std::string render_html(const Json& report);

// Markdown, headings from the second level on.
std::string render_model_card(const Json& report);

}  // namespace octavo
