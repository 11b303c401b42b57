// The plots of a report, as inline SVG that takes its colours from the page. Every text in them that is a figure names
// its place in the JSON, as markup.h says.
#pragma once

#include <string>
#include <vector>

#include "evaluate/report/figures.h"

namespace octavo {

// A labelled figure, and its standard error where there is one.
struct PlotRow {
  ReportNode label, value, standard_error;
  bool emphasis = false;  // the candidate
};

// A bar per row from 0; a line at `reference` (the base) where it is above 0.
std::string bar_plot(const std::string& title, const std::vector<PlotRow>& rows, FigureUnit unit, double reference);
// A dot per row with a whisker of one standard error, around a line at 0.
std::string change_plot(const std::string& title, const std::vector<PlotRow>& rows, FigureUnit unit);
// Where a gate's figure lies to its limit: the limit in the middle, the side that fails shaded.
std::string gate_plot(const ReportNode& gate);
// Lengths across, depths down: found by both, lost, gained, found by neither.
std::string needle_plot(const ReportNode& needle);
// Layers across, roles down, of one scheme of "sensitivity"; `summary` is that scheme's of "sensitivity_summary";
// `lowest` and `highest` are the ends of the scale, which all schemes share.
std::string heat_map(const ReportNode& entries, const ReportNode& summary, const ReportNode& lowest,
                     const ReportNode& highest);

}  // namespace octavo
