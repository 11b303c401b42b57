// libFuzzer entry of target_tokenizer.h; seeds in corpus/tokenizer.
#include "target_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  octavo::fuzz_tokenizer({reinterpret_cast<const char*>(data), size});
  return 0;
}
