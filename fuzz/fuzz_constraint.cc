// libFuzzer entry of target_constraint.h; seeds in corpus/constraint.
#include "target_constraint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  octavo::fuzz_constraint(std::as_bytes(std::span(data, size)));
  return 0;
}
