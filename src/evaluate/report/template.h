// The page's frame, compiled into the binary from report.html; {{name}} marks what is filled in.
#pragma once

#include <string_view>

namespace octavo {

std::string_view report_template();

}  // namespace octavo
