// What the GGUF fuzzer does with an input: opens it as a file, reads its metadata as a model and decodes its tensors.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/gguf.h"

namespace octavo {

inline void fuzz_gguf_file(const std::string& path) {
  auto gguf = Gguf::open(path);
  if (!gguf) return;
  (void)gguf->texts("tokenizer.ggml.tokens");
  const auto config = model_config_from_gguf(*gguf);
  if (!config) return;
  (void)inverse_frequencies(*config);
  const auto reader = open_gguf_tensors(std::move(*gguf), *config);
  if (!reader) return;
  std::vector<float> values;
  for (const TensorEntry& entry : (*reader)->entries()) {
    if (entry.stored_bytes == 0) continue;
    int64_t count = 1;
    for (const int64_t dim : entry.shape) count *= dim;
    const int64_t rows = entry.shape.size() < 2 ? 1 : count / entry.shape.back();
    values.resize(static_cast<size_t>(count));
    (void)(*reader)->read_f32(entry, 0, rows, values);
    (*reader)->forget(entry, 0, rows);
  }
}

inline void fuzz_gguf(std::span<const std::byte> input) {
  const int fd = memfd_create("gguf", MFD_CLOEXEC);
  if (fd < 0) return;
  if (write(fd, input.data(), input.size()) == static_cast<ssize_t>(input.size()))
    fuzz_gguf_file("/proc/self/fd/" + std::to_string(fd));
  close(fd);
}

}  // namespace octavo
