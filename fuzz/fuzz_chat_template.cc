// libFuzzer entry of target_chat_template.h; seeds in corpus/chat_template.
#include "target_chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  octavo::fuzz_chat_template({reinterpret_cast<const char*>(data), size});
  return 0;
}
