#include "evaluate/report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "evaluate/accept/gates.h"

namespace octavo {
namespace {

// Number and unit apart; the unit is empty where there is none.
struct Parts {
  std::string number, unit;
};

Parts bytes_parts(double value) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (; std::fabs(value) >= 1000 && unit + 1 < std::size(units); ++unit) value /= 1000;
  return {unit == 0 ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}", value), units[unit]};
}

// Three significant digits, never in powers of ten.
std::string three_digits(double value) {
  if (value == 0) return "0";
  const int power = static_cast<int>(std::floor(std::log10(std::fabs(value))));
  return fmt::format("{:.{}f}", value, std::clamp(2 - power, 0, 12));
}

Parts parts_of(double value, FigureUnit unit) {
  if (!std::isfinite(value)) return {"not finite", ""};
  switch (unit) {
    case FigureUnit::kCount:
      return {fmt::format("{:.0f}", value), ""};
    case FigureUnit::kNumber:
      return {fmt::format("{:g}", value), ""};
    case FigureUnit::kShare:
      return {fmt::format("{:.0f}", 100 * value), "%"};
    case FigureUnit::kPercent:
      return {fmt::format("{:.2f}", 100 * value), "%"};
    case FigureUnit::kChange:
      return {value == 0 ? "0" : fmt::format("{:+.2f}", 100 * value), "%"};
    case FigureUnit::kRatio:
      return {fmt::format("{:.2f}", value), "×"};
    case FigureUnit::kBytes:
      return bytes_parts(value);
    case FigureUnit::kSeconds:
      return std::fabs(value) < 1 ? Parts{three_digits(1e3 * value), "ms"} : Parts{three_digits(value), "s"};
    case FigureUnit::kRate:
      return {three_digits(value), "tok/s"};
    case FigureUnit::kNats:
      return {three_digits(value), ""};
    case FigureUnit::kScore:
      return {fmt::format("{:.4f}", value), ""};
    case FigureUnit::kPerplexity:
      return {fmt::format("{:.3f}", value), ""};
  }
  return {};
}

Parts error_parts(double error, double value, FigureUnit unit) {
  const bool share = unit == FigureUnit::kChange || unit == FigureUnit::kPercent;
  if (value == 0 || unit == FigureUnit::kBytes || unit == FigureUnit::kSeconds)
    return parts_of(error, unit == FigureUnit::kChange ? FigureUnit::kPercent : unit);
  Parts parts = parts_of(value, unit);
  const size_t point = parts.number.find('.');
  const size_t decimals = point == std::string::npos ? 0 : parts.number.size() - point - 1;
  parts.number = fmt::format("{:.{}f}", share ? 100 * error : error, decimals);
  return parts;
}

std::string rich(Parts parts) {
  if (parts.number.starts_with('-')) parts.number = "\u2212" + parts.number.substr(1);
  return parts.unit.empty() ? parts.number : parts.number + "\u202F" + parts.unit;
}

std::string plain(const Parts& parts) {
  if (parts.unit == "×") return parts.number + "x";
  return parts.unit.empty() ? parts.number : parts.number + " " + parts.unit;
}

}  // namespace

std::string figure_text(double value, FigureUnit unit) {
  return rich(parts_of(value, unit));
}

std::string plain_figure(double value, FigureUnit unit) {
  return plain(parts_of(value, unit));
}

std::string error_text(double error, double value, FigureUnit unit) {
  return rich(error_parts(error, value, unit));
}

std::string plain_error(double error, double value, FigureUnit unit) {
  return plain(error_parts(error, value, unit));
}

ReportNode ReportNode::operator[](std::string_view key) const {
  std::string pointer = pointer_ + "/";
  for (const char c : key) pointer += c == '~' ? "~0" : (c == '/' ? "~1" : std::string(1, c));
  if (value_ == nullptr || !value_->is_object()) return {nullptr, std::move(pointer)};
  const auto found = value_->find(key);
  return {found == value_->end() ? nullptr : &*found, std::move(pointer)};
}

ReportNode ReportNode::operator[](size_t index) const {
  std::string pointer = fmt::format("{}/{}", pointer_, index);
  if (value_ == nullptr || !value_->is_array() || index >= value_->size()) return {nullptr, std::move(pointer)};
  return {&(*value_)[index], std::move(pointer)};
}

FigureUnit unit_of_gate(std::string_view gate) {
  for (const GateRow& row : gate_rows())
    if (row.name == gate) return row.unit;
  return FigureUnit::kNats;
}

}  // namespace octavo
