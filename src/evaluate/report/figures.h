// Figures of a report: how a number is written for people, and where in the JSON it stands.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace octavo {

// How a figure is written for people.
enum class FigureUnit : uint8_t {
  kCount,       // 2048
  kNumber,      // 1.5
  kPercent,     // of a share: 98.53 %
  kShare,       // of a share, whole: 62 %
  kChange,      // of a share, with its sign: +3.69 %
  kRatio,       // 0.61 x
  kBytes,       // 163.8 MB
  kSeconds,     // 55.3 ms, 1.24 s
  kRate,        // 1541 tok/s
  kNats,        // three significant digits
  kScore,       // 0.5821
  kPerplexity,  // 20.319
};
// Number and unit in UTF-8; the unit follows a narrow space that does not break, minus is U+2212.
std::string figure_text(double value, FigureUnit unit);
// The same in ASCII.
std::string plain_figure(double value, FigureUnit unit);
// The standard error of a figure, with as many decimals as the figure has.
std::string error_text(double error, double value, FigureUnit unit);
std::string plain_error(double error, double value, FigureUnit unit);

// A value of the report and its JSON pointer. What is not there has no value, and its members neither.
class ReportNode {
 public:
  explicit ReportNode(const Json& root) : value_(&root) {}
  ReportNode operator[](std::string_view key) const;
  ReportNode operator[](size_t index) const;

  bool exists() const { return value_ != nullptr && !value_->is_null(); }
  bool is_number() const { return exists() && value_->is_number(); }
  bool is_array() const { return exists() && value_->is_array(); }
  bool is(std::string_view text) const { return exists() && value_->is_string() && *value_ == text; }
  bool is_true() const { return exists() && value_->is_boolean() && value_->get<bool>(); }
  size_t size() const { return exists() ? value_->size() : 0; }
  double number(double otherwise = 0) const { return is_number() ? value_->get<double>() : otherwise; }
  std::string text() const { return exists() && value_->is_string() ? value_->get<std::string>() : std::string(); }
  const std::string& pointer() const { return pointer_; }

 private:
  ReportNode(const Json* value, std::string pointer) : value_(value), pointer_(std::move(pointer)) {}
  const Json* value_ = nullptr;
  std::string pointer_;
};

// The unit in which a gate's figure and limit are shown.
FigureUnit unit_of_gate(std::string_view gate);

}  // namespace octavo
