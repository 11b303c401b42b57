// Flags that were given where they would do nothing: an error that names them, never silence.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace octavo {

struct GivenFlag {
  std::string_view flag;
  bool given;  // whether it is other than it is by itself
};

// Error for the first of the flags that was given. `why`: what it would need, or what it does not go with.
inline Result<void> refuse_flags(std::span<const GivenFlag> flags, const std::string& why) {
  for (const GivenFlag& each : flags)
    if (each.given)
      return fail(
          {.what = "the flag would do nothing: " + why, .where = std::string(each.flag), .remedy = "leave it out"});
  return {};
}

}  // namespace octavo
