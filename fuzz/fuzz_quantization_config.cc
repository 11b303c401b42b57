// Fuzzes the readers of quantization_config.
#include "target_quantization_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  octavo::fuzz::read_quantization_config(data, size);
  return 0;
}
