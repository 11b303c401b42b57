// Fuzzes the reader of octavo_kv.json.
#include "target_kv_calibration.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  octavo::fuzz::read_kv_calibration(data, size);
  return 0;
}
