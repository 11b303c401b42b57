#include "base/result.h"

namespace octavo {

std::string Error::message() const {
  std::string text = what;
  const auto add = [&text](const char* label, const std::string& value) {
    if (!value.empty()) text += std::string("\n  ") + label + value;
  };
  add("where:    ", where);
  add("found:    ", found);
  add("expected: ", expected);
  add("remedy:   ", remedy);
  return text;
}

std::string Error::line() const {
  std::string text = what;
  if (!where.empty()) text += " (" + where + ")";
  if (!found.empty()) text += "; found " + found;
  if (!expected.empty()) text += "; expected " + expected;
  if (!remedy.empty()) text += "; " + remedy;
  return text;
}

}  // namespace octavo
