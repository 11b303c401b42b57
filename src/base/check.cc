#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace octavo {

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  std::fprintf(stderr, "octavo: internal error at %s:%d: %s%s%s\n", file, line, condition, detail.empty() ? "" : ": ",
               detail.c_str());
  std::abort();
}

}  // namespace octavo
