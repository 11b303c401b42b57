// Temporary folders, and model files written byte by byte, right and wrong ones.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/test_folder.h"

namespace octavo {

inline const std::filesystem::path kTestData = OCTAVO_TEST_DATA;
inline constexpr const char* kTinyModels[] = {"llama_attention_bias",
                                              "llama_rope_dynamic",
                                              "llama_rope_linear",
                                              "llama_rope_llama3",
                                              "llama_rope_yarn",
                                              "llama_tied",
                                              "llama_untied_hd64",
                                              "mistral_sliding",
                                              "mixtral",
                                              "qwen2_bias",
                                              "qwen3_moe",
                                              "qwen3_qk_norm",
                                              "qwen3_yarn"};

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// A safetensors file from its header's text and data.
inline std::string safetensors_bytes(const std::string& header, const std::string& data = "") {
  return raw<uint64_t>(header.size()) + header + data;
}

// A small writer of GGUF files that checks nothing.
class GgufBuilder {
 public:
  std::string version = raw<uint32_t>(3);
  std::string values, directory, data;
  uint64_t num_values = 0, num_tensors = 0;

  static std::string text(const std::string& s) { return raw<uint64_t>(s.size()) + s; }

  GgufBuilder& value(const std::string& key, uint32_t type, const std::string& bytes) {
    values += text(key) + raw(type) + bytes;
    ++num_values;
    return *this;
  }
  GgufBuilder& u32(const std::string& key, uint32_t v) { return value(key, 4, raw(v)); }
  GgufBuilder& f32(const std::string& key, float v) { return value(key, 6, raw(v)); }
  GgufBuilder& string(const std::string& key, const std::string& v) { return value(key, 8, text(v)); }

  // dims: fastest first, as in the file.
  GgufBuilder& tensor(const std::string& name, std::vector<int64_t> dims, uint32_t type, const std::string& bytes) {
    directory += text(name) + raw(static_cast<uint32_t>(dims.size()));
    for (const int64_t dim : dims) directory += raw(dim);
    directory += raw(type) + raw(static_cast<uint64_t>(data.size()));
    data += bytes;
    data.resize((data.size() + 31) / 32 * 32, '\0');
    ++num_tensors;
    return *this;
  }
  GgufBuilder& floats(const std::string& name, std::vector<int64_t> dims, const std::vector<float>& v) {
    return tensor(name, std::move(dims), 0, std::string(reinterpret_cast<const char*>(v.data()), v.size() * 4));
  }

  std::string bytes() const {
    std::string all = "GGUF" + version + raw(num_tensors) + raw(num_values) + values + directory;
    all.resize((all.size() + 31) / 32 * 32, '\0');
    return all + data;
  }
};

}  // namespace octavo
