// Goldens: tensors that another implementation computed, read from a safetensors file.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace octavo {

inline std::string test_data(const std::string& name) {
  return std::string(OCTAVO_TEST_DATA) + "/" + name;
}

class Golden {
 public:
  explicit Golden(const std::string& path) {
    auto reader = open_safetensors(path);
    if (!reader)
      ADD_FAILURE() << reader.error().message();
    else
      reader_ = std::move(*reader);
  }
  bool has(const std::string& name) const { return reader_->find(name) != nullptr; }
  Shape shape(const std::string& name) const { return entry(name).shape; }
  std::vector<float> floats(const std::string& name) const {
    const TensorView view = *entry(name).plain;
    std::vector<float> values(static_cast<size_t>(view.size()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = view.at(static_cast<int64_t>(i));
    return values;
  }
  // Exact below 2^24, which ids and positions are.
  std::vector<int32_t> ints(const std::string& name) const {
    std::vector<int32_t> values;
    for (const float value : floats(name)) values.push_back(static_cast<int32_t>(value));
    return values;
  }

 private:
  const TensorEntry& entry(const std::string& name) const {
    const TensorEntry* found = reader_->find(name);
    if (found == nullptr) throw std::runtime_error("golden has no tensor " + name);
    return *found;
  }
  std::unique_ptr<TensorReader> reader_;
};

// max |a - b| / max |b|
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    difference = std::max(difference, std::fabs(static_cast<double>(a[i]) - b[i]));
    largest = std::max(largest, std::fabs(static_cast<double>(b[i])));
  }
  return difference / largest;
}

}  // namespace octavo
