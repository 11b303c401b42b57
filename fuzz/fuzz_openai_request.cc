// libFuzzer entry of target_openai_request.h; seeds in corpus/openai_request.
#include "target_openai_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  octavo::fuzz_openai_request(std::as_bytes(std::span(data, size)));
  return 0;
}
