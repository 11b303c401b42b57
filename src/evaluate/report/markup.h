// Markup of a report. Whatever is shown of the JSON stands in an element whose data-json is its pointer: so each figure
// on the page can be traced, and a test follows every one.
#pragma once

#include <string>
#include <string_view>

#include "evaluate/report/figures.h"

namespace octavo {

std::string escape_html(std::string_view text);

// A figure; a dash where there is none.
std::string shown(const ReportNode& node, FigureUnit unit);
// figure ± standard error, the latter where there is one
std::string shown_with_error(const ReportNode& node, const ReportNode& error, FigureUnit unit);
// A text; nothing where there is none.
std::string shown(const ReportNode& node);

// <text> at a place; `more`: further attributes.
std::string svg_text(double x, double y, std::string_view more, const ReportNode& node, FigureUnit unit);
std::string svg_text(double x, double y, std::string_view more, const ReportNode& node);
std::string svg_text(double x, double y, std::string_view more, std::string_view words);

}  // namespace octavo
