// libFuzzer entry of target_plan_file.h; seeds in corpus/plan_file.
#include "target_plan_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  octavo::fuzz_plan_file(std::as_bytes(std::span(data, size)));
  return 0;
}
