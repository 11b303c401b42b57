// libFuzzer entry of target_model_config.h; seeds in corpus/model_config.
#include "target_model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  octavo::fuzz_model_config(std::as_bytes(std::span(data, size)));
  return 0;
}
