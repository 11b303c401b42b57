// libFuzzer entry of target_gguf.h; seeds in corpus/gguf.
#include "target_gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  octavo::fuzz_gguf(std::as_bytes(std::span(data, size)));
  return 0;
}
