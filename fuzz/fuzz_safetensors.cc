// libFuzzer entry of target_safetensors.h; seeds in corpus/safetensors.
#include "target_safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  octavo::fuzz_safetensors(std::as_bytes(std::span(data, size)));
  return 0;
}
