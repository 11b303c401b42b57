// The work folder of a calibrated quantization: finished layers lie in it, so that a run that was ended goes on where
// it was. It stands beside the output folder and goes when that is complete.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "formats/tensor.h"
#include "models/layers/decoder_layer.h"

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

class WorkFolder {
 public:
  // OUT.work, made or found. `fingerprint` describes the run: everything that decides its bytes. Errors: another run
  // is at work in it; it belongs to a different run.
  static Result<WorkFolder> open(const std::filesystem::path& out, const std::string& fingerprint);
  static std::filesystem::path path_for(const std::filesystem::path& out);
  WorkFolder(WorkFolder&& other) noexcept;
  WorkFolder& operator=(WorkFolder&&) = delete;
  ~WorkFolder();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path statistics_file(int layer) const;
  bool has(int layer) const;  // -1: the head
  // The layer's file appears complete, or not at all.
  Result<void> save(int layer, const QuantizedLayer& weights, const LayerFactors& factors = {}) const;
  // `formats`: of the modules wanted. A damaged file is an error that names it.
  Result<QuantizedLayer> load(int layer, const std::map<std::string, std::pair<TensorFormat, Shape>>& formats) const;
  Result<LayerFactors> load_factors(int layer) const;
  void remove();

 private:
  WorkFolder() = default;
  std::filesystem::path file(int layer) const;
  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace octavo
