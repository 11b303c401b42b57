#include "evaluate/report/markup.h"

#include <fmt/format.h>

namespace octavo {
namespace {

std::string data_json(const ReportNode& node) {
  return fmt::format("data-json=\"{}\"", escape_html(node.pointer()));
}

std::string text_at(double x, double y, std::string_view more, const std::string& attribute, const std::string& inner) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}{}{}{}>{}</text>", x, y, more.empty() ? "" : " ", more,
                     attribute.empty() ? "" : " ", attribute, inner);
}

std::string figure_element(const ReportNode& node, const std::string& text) {
  return fmt::format("<data value=\"{:.17g}\" {}>{}</data>", node.number(), data_json(node), text);
}

constexpr std::string_view kNothing = "\u2013";

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string shown(const ReportNode& node, FigureUnit unit) {
  if (!node.is_number()) return fmt::format("<span class=\"none\">{}</span>", kNothing);
  return figure_element(node, figure_text(node.number(), unit));
}

std::string shown_with_error(const ReportNode& node, const ReportNode& error, FigureUnit unit) {
  if (!node.is_number() || !error.is_number() || error.number() == 0) return shown(node, unit);
  return fmt::format("{} <span class=\"error\">± {}</span>", shown(node, unit),
                     figure_element(error, error_text(error.number(), node.number(), unit)));
}

std::string shown(const ReportNode& node) {
  if (node.text().empty()) return {};
  return fmt::format("<span {}>{}</span>", data_json(node), escape_html(node.text()));
}

std::string svg_text(double x, double y, std::string_view more, const ReportNode& node, FigureUnit unit) {
  if (!node.is_number()) return svg_text(x, y, more, kNothing);
  return text_at(x, y, more, data_json(node), figure_text(node.number(), unit));
}

std::string svg_text(double x, double y, std::string_view more, const ReportNode& node) {
  return text_at(x, y, more, data_json(node), escape_html(node.text()));
}

std::string svg_text(double x, double y, std::string_view more, std::string_view words) {
  return text_at(x, y, more, "", escape_html(words));
}

}  // namespace octavo
