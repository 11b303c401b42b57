#include "evaluate/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "evaluate/report/markup.h"

namespace octavo {
namespace {

constexpr double kWidth = 400, kRow = 38, kTop = 34;

std::string open_svg(double width, double height, std::string_view kind, std::string_view label) {
  return fmt::format(
      "<svg class=\"plot {}\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\" "
      "style=\"max-width:{:.0f}px\">",
      kind, width, height, escape_html(label), 1.15 * width);
}

std::string rectangle(double x, double y, double width, double height, std::string_view style, double radius = 0) {
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"{:.1f}\" class=\"{}\"/>",
                     x, y, std::max(width, 0.0), height, radius, style);
}

std::string line(double x1, double y1, double x2, double y2, std::string_view style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>", x1, y1, x2, y2,
                     style);
}

// Label on the left, figure on the right; the row's drawing goes under them.
std::string row_texts(const PlotRow& row, double y, FigureUnit unit) {
  return svg_text(0, y, row.emphasis ? "class=\"label strong\"" : "class=\"label\"", row.label) +
         svg_text(kWidth, y, row.emphasis ? "class=\"value end strong\"" : "class=\"value end\"", row.value, unit);
}

double highest(const std::vector<PlotRow>& rows) {
  double most = 0;
  for (const PlotRow& row : rows) most = std::max(most, row.value.number());
  return most;
}

}  // namespace

std::string bar_plot(const std::string& title, const std::vector<PlotRow>& rows, FigureUnit unit, double reference) {
  const double height = kTop + kRow * static_cast<double>(rows.size()), most = std::max(highest(rows), reference);
  std::string out = open_svg(kWidth, height, "bars", title) + svg_text(0, 14, "class=\"title\"", title);
  const auto place = [&](double value) { return most > 0 ? kWidth * std::clamp(value / most, 0.0, 1.0) : 0.0; };
  for (size_t i = 0; i < rows.size(); ++i) {
    const double y = kTop + kRow * static_cast<double>(i) + 12;
    out += row_texts(rows[i], y, unit);
    out += rectangle(0, y + 6, kWidth, 8, "track", 2);
    if (rows[i].value.is_number())
      out += rectangle(0, y + 6, place(rows[i].value.number()), 8, rows[i].emphasis ? "bar candidate" : "bar", 2);
    if (reference > 0) out += line(place(reference) - 0.5, y + 4, place(reference) - 0.5, y + 16, "reference");
  }
  return out + "</svg>";
}

std::string change_plot(const std::string& title, const std::vector<PlotRow>& rows, FigureUnit unit) {
  const double height = kTop + kRow * static_cast<double>(rows.size());
  double low = 0, high = 0;
  for (const PlotRow& row : rows) {
    low = std::min(low, row.value.number() - row.standard_error.number());
    high = std::max(high, row.value.number() + row.standard_error.number());
  }
  const double range = high > low ? high - low : 1;
  const auto place = [&](double value) { return 6 + (kWidth - 12) * (value - low) / range; };
  std::string out = open_svg(kWidth, height, "changes", title) + svg_text(0, 14, "class=\"title\"", title);
  for (size_t i = 0; i < rows.size(); ++i) {
    const PlotRow& row = rows[i];
    const double y = kTop + kRow * static_cast<double>(i) + 12, middle = y + 10;
    out += row_texts(row, y, unit);
    out += line(0, middle, kWidth, middle, "axis") + line(place(0), middle - 6, place(0), middle + 6, "zero");
    if (!row.value.is_number()) continue;
    const double value = row.value.number(), error = row.standard_error.number();
    out += line(place(0), middle, place(value), middle, row.emphasis ? "stem candidate" : "stem");
    if (error > 0) {
      out += line(place(value - error), middle, place(value + error), middle, "whisker");
      for (const double end : {value - error, value + error})
        out += line(place(end), middle - 4, place(end), middle + 4, "whisker");
    }
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" class=\"dot{}\"/>", place(value), middle,
                       row.emphasis ? " candidate" : "");
  }
  return out + "</svg>";
}

std::string gate_plot(const ReportNode& gate) {
  if (!gate["limit"].is_number() || !gate["value"].is_number()) return {};
  constexpr double kLong = 132, kHigh = 18, kMiddle = kLong / 2;
  const double limit = gate["limit"].number(), value = gate["value"].number();
  const bool is_max = gate["side"].is("max"), fails = gate["status"].is("fails");
  double x = kMiddle;
  if (limit > 0)
    x = std::clamp(kMiddle * value / limit, 4.0, kLong - 4);
  else if (value != 0)
    x = value > 0 ? kLong - 4 : 4;
  std::string out = open_svg(kLong, kHigh, "gate", fails ? "beyond the limit" : "within the limit");
  out += rectangle(0, 6, kLong, 6, "track", 3);
  out += is_max ? rectangle(kMiddle, 6, kMiddle, 6, "forbidden", 3) : rectangle(0, 6, kMiddle, 6, "forbidden", 3);
  out += line(kMiddle, 1, kMiddle, kHigh - 1, "limit");
  out += fmt::format("<circle cx=\"{:.1f}\" cy=\"9\" r=\"4.5\" class=\"dot {}\"/>", x, fails ? "fails" : "holds");
  return out + "</svg>";
}

std::string needle_plot(const ReportNode& needle) {
  constexpr double kLeft = 54, kCellWidth = 58, kCellHeight = 30, kHead = 24;
  const size_t columns = needle["lengths"].size(), lines = needle["depths"].size();
  const double width = kLeft + kCellWidth * static_cast<double>(columns),
               height = kHead + kCellHeight * static_cast<double>(lines);
  const bool single = needle["tries"].number() == 1;
  std::string out = open_svg(width, height, "needles", "needles found, by depth and length");
  for (size_t c = 0; c < columns; ++c)
    out += svg_text(kLeft + kCellWidth * (static_cast<double>(c) + 0.5), 14, "class=\"label middle\"",
                    needle["lengths"][c], FigureUnit::kCount);
  for (size_t r = 0; r < lines; ++r) {
    const double y = kHead + kCellHeight * static_cast<double>(r);
    out += svg_text(kLeft - 10, y + 19, "class=\"label end\"", needle["depths"][r], FigureUnit::kCount);
    for (size_t c = 0; c < columns; ++c) {
      const ReportNode cell = needle["cells"][c * lines + r];
      const double base = cell["base_found"].number(), found = cell["candidate_found"].number(),
                   x = kLeft + kCellWidth * static_cast<double>(c);
      const char* kind = found < base ? "lost" : (found > base ? "gained" : (found > 0 ? "kept" : "neither"));
      const char* symbol = found < base ? "\u2715" : (found > base ? "+" : (found > 0 ? "\u2713" : "\u00B7"));
      out += rectangle(x + 1.5, y + 1.5, kCellWidth - 3, kCellHeight - 3, kind, 4);
      const std::string style = fmt::format("class=\"mark middle {}-mark\"", kind);
      out += single ? svg_text(x + kCellWidth / 2, y + 20, style, symbol)
                    : svg_text(x + kCellWidth / 2, y + 20, style, cell["candidate_found"], FigureUnit::kCount);
    }
  }
  return out + "</svg>";
}

namespace {

constexpr std::string_view kRoles[] = {"q_proj",  "k_proj",    "v_proj",  "o_proj",  "gate_proj",
                                       "up_proj", "down_proj", "k_cache", "v_cache", "lm_head"};
constexpr int kSteps = 7;

// 0 to kSteps - 1, logarithmic between the lowest and the highest divergence (of a range of at most 10^4).
int heat_step(double kl, double low, double high) {
  low = std::max(low, high * 1e-4);
  if (high <= low || kl <= low) return 0;
  const double share = std::log(kl / low) / std::log(high / low);
  return std::clamp(static_cast<int>(share * kSteps), 0, kSteps - 1);
}

struct HeatScale {
  double left = 78, top = 22, cell = 20, row = 20;
};

std::string heat_cell(const ReportNode& entry, double x, double y, const HeatScale& s, double low, double high) {
  const ReportNode kl = entry["kl"];
  std::string out = fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\" class=\"heat{}\"><title "
      "data-json=\"{}\">{}</title></rect>",
      x + 0.5, y + 0.5, s.cell - 1, s.row - 1, static_cast<char>('a' + heat_step(kl.number(), low, high)), kl.pointer(),
      figure_text(kl.number(), FigureUnit::kNats));
  if (entry["class"].is("keep wide"))
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" class=\"wide\"/>", x + s.cell / 2,
                       y + s.row / 2, std::min(3.5, s.cell / 4));
  return out;
}

std::string heat_legend(double x, double y, const ReportNode& lowest, const ReportNode& highest) {
  const double begin = x + 78;
  std::string out = svg_text(begin - 8, y + 11, "class=\"label end\"", lowest, FigureUnit::kNats);
  for (int step = 0; step < kSteps; ++step)
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"22\" height=\"12\" class=\"heat{}\"/>",
                       begin + 22.0 * step, y, static_cast<char>('a' + step));
  out += svg_text(begin + 22 * kSteps + 8, y + 11, "class=\"label\"", highest, FigureUnit::kNats);
  const double dot = begin + 22 * kSteps + 82;
  out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" rx=\"2\" class=\"heatf\"/>", dot - 7,
                     y - 1) +
         fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" class=\"wide\"/>", dot, y + 6);
  return out + svg_text(dot + 14, y + 11, "class=\"label\"", "keep wide");
}

}  // namespace

std::string heat_map(const ReportNode& entries, const ReportNode& summary, const ReportNode& lowest,
                     const ReportNode& highest) {
  const auto layers = static_cast<size_t>(summary["layers"].number());
  const bool cache = summary["part"].is("kv_cache");
  const auto shows = [&](const ReportNode& entry) {  // a scheme and a format of the cache may have one name
    return entry["scheme"].is(summary["scheme"].text()) &&
           (entry["role"].is("k_cache") || entry["role"].is("v_cache")) == cache;
  };
  HeatScale s;
  s.cell = std::clamp(640.0 / static_cast<double>(std::max<size_t>(layers, 1)), 7.0, 24.0);
  std::vector<std::string_view> roles;
  for (const std::string_view role : kRoles)
    for (size_t i = 0; i < entries.size(); ++i)
      if (shows(entries[i]) && entries[i]["role"].is(role)) {
        roles.push_back(role);
        break;
      }
  const double bottom = s.top + s.row * static_cast<double>(roles.size()),
               width = std::max(s.left + s.cell * static_cast<double>(layers), 480.0);
  const double low = lowest.number(), high = highest.number();
  std::string out = open_svg(width, bottom + 34, "heat", "KL divergence by layer and role");
  for (size_t r = 0; r < roles.size(); ++r)
    out += svg_text(s.left - 8, s.top + s.row * static_cast<double>(r) + 14, "class=\"label end\"", roles[r]);
  std::vector<bool> named(layers);
  const size_t every = layers > 40 ? 10 : 5;
  for (size_t i = 0; i < entries.size(); ++i) {
    const ReportNode entry = entries[i];
    if (!shows(entry)) continue;
    const bool head = entry["role"].is("lm_head");
    const auto layer = head ? size_t{0} : static_cast<size_t>(entry["layer"].number());
    const auto role = static_cast<size_t>(std::find(roles.begin(), roles.end(), entry["role"].text()) - roles.begin());
    if (layer >= layers || role >= roles.size()) continue;
    const double x = s.left + s.cell * static_cast<double>(layer);
    out += heat_cell(entry, x, s.top + s.row * static_cast<double>(role), s, low, high);
    if (head || named[layer] || layer % every != 0) continue;
    named[layer] = true;
    out += svg_text(x + s.cell / 2, 14, "class=\"label middle\"", entry["layer"], FigureUnit::kCount);
  }
  return out + heat_legend(s.left - 20, bottom + 14, lowest, highest) + "</svg>";
}

}  // namespace octavo
