// The version that --version prints.
#pragma once

namespace octavo {
inline constexpr const char* kVersion = "0.1.0";
}
