// The work folder of a calibrated quantization: finished layers lie in it, so that a run that was ended goes on where
// it was. It stands beside the output folder and goes when that is complete.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file_lock.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "formats/tensor.h"
#include "models/layers/decoder_layer.h"
#include "quantize/statistics.h"

namespace octavo {

// A weight on its grid, and what that cost.
struct QuantizedLinear {
  Matrix matrix;
  StoredOutliers outliers;                       // columns that are zero in the matrix
  float input_scale = 0;                         // static activation scale; 0: none
  double objective = 0, rounding_objective = 0;  // tr(dW H dW^T); 0 where it was not computed
  double error = 0;                              // relative RMS against the source
};
using QuantizedLayer = std::map<std::string, QuantizedLinear>;  // by module

// Factors per input channel (quantize/weight_transform.h), by place.
using LayerFactors = std::map<LinearInput, std::vector<float>>;

// What a layer leaves behind beside its weights.
struct LayerRecord {
  StatisticsMap statistics;
  LayerFactors factors;
  std::vector<int64_t> expert_tokens;  // that passed each expert; empty for a dense layer
  std::vector<std::string> notes;      // a line each
};

class WorkFolder {
 public:
  // OUT.work, made or found. `fingerprint` describes the run: everything that decides its bytes. What another run left
  // there is cleared away where it finished no layer. Errors: another run is at work in it; it holds finished layers of
  // a different run.
  static Result<WorkFolder> open(const std::filesystem::path& out, const std::string& fingerprint);
  // Whether open() would give it; makes and changes nothing.
  static Result<void> check(const std::filesystem::path& out, const std::string& fingerprint);
  // The same for a trial: whatever is in it goes.
  static Result<WorkFolder> open_empty(const std::filesystem::path& out);
  static std::filesystem::path path_for(const std::filesystem::path& out);
  // Bytes of the finished layers in OUT.work.
  static int64_t finished_bytes(const std::filesystem::path& out);

  const std::filesystem::path& path() const { return path_; }
  bool has(int layer) const;  // -1: the head
  int finished() const;       // how many, the head counts as one
  // The layer's files; the last one to appear says that it is finished.
  Result<void> save(int layer, const QuantizedLayer& weights, const LayerRecord& record = {}) const;
  // `formats`: of the modules wanted. A damaged file is an error that names it.
  Result<QuantizedLayer> load(int layer, const std::map<std::string, std::pair<TensorFormat, Shape>>& formats) const;
  Result<LayerFactors> load_factors(int layer) const;
  Result<std::vector<int64_t>> load_expert_tokens(int layer) const;
  Result<StatisticsMap> load_statistics(int layer) const;
  Result<std::vector<std::string>> load_notes(int layer) const;
  void remove();

 private:
  WorkFolder() = default;
  static Result<WorkFolder> lock(const std::filesystem::path& out);
  std::filesystem::path file(int layer, std::string_view extension = ".safetensors") const;
  void clear() const;
  void clear_temporaries() const;
  std::filesystem::path path_;
  std::optional<FileLock> lock_;
};

}  // namespace octavo
