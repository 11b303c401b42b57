// GGUF -> a BF16 folder as model hubs ship it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "checkpoint/output_folder.h"
#include "formats/tensor.h"

namespace octavo {

struct ConvertSummary {
  OutputFolder folder;  // complete but for the tokenizer's files: add them, then folder.finish()
  ModelConfig config;
  int64_t tensors = 0, parameters = 0;
  int64_t bytes_before = 0, bytes_after = 0;
  std::map<std::string, int> stored_types;  // how many tensors had which type in the GGUF
};

struct ConvertProgress {
  int64_t bytes_done = 0, bytes_total = 0;  // of the BF16 tensors
  std::string_view tensor;
};

// Decodes every tensor to FP32 and rounds it to BF16 (nearest, ties to even), a few rows at a time. Writes
// model.safetensors, config.json and generation_config.json into a temporary folder beside `out`. On an error nothing
// is left behind.
Result<ConvertSummary> convert_to_bf16_folder(const std::filesystem::path& gguf, const std::filesystem::path& out,
                                              const std::function<void(const ConvertProgress&)>& progress = {});

// Names and shapes of all tensors that an unquantized checkpoint of this model holds.
std::vector<std::pair<std::string, Shape>> model_tensors(const ModelConfig& config);

}  // namespace octavo
