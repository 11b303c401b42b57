// Checkpoint: a model on disk (a folder of safetensors, or a GGUF file) as named tensors under their hub names, with
// the quantization it was stored in. Everything in it was checked against the file's real size before it is handed out.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/kv_calibration.h"
#include "checkpoint/model_config.h"
#include "formats/tensor.h"
#include "precision/plan.h"

namespace octavo {

// One stored tensor. GGUF tensors appear under their hub names, with q and k rows in hub order (rotate-half).
struct TensorEntry {
  std::string name;
  Shape shape;
  std::string stored_type;  // "BF16", "F8_E4M3", "Q4_1"
  int64_t stored_bytes = 0;
  std::filesystem::path file;       // relative to the model's folder
  std::optional<TensorView> plain;  // set where the bytes are plain elements in hub order, mapped; may be unaligned
};

// Reads tensors of one container format. Implementations: safetensors (one file or an index), GGUF.
class TensorReader {
 public:
  virtual ~TensorReader() = default;
  virtual const std::vector<TensorEntry>& entries() const = 0;  // sorted by name
  virtual const TensorEntry* find(std::string_view name) const = 0;
  // Rows [begin, end) of a tensor (all axes but the last flattened into rows) as FP32 into out, which holds
  // (end - begin) x cols values.
  virtual Result<void> read_f32(const TensorEntry& entry, int64_t begin, int64_t end, std::span<float> out) const = 0;
  // A container's own blocks that are codes with scales: their format, and the whole tensor as such. None: only values.
  virtual std::optional<TensorFormat> code_format(const TensorEntry&) const { return std::nullopt; }
  virtual void read_codes(const TensorEntry&, std::span<std::byte>, std::span<float>) const {}
  // The rows were consumed: their pages need not stay resident.
  virtual void forget(const TensorEntry& entry, int64_t begin, int64_t end) const = 0;
};

// Input channels whose weights stay in BF16 and whose activations are not quantized.
struct StoredOutliers {
  std::vector<int32_t> channels;  // ascending
  std::vector<float> weight;      // [rows, channels]
};

// A linear layer's weight as stored.
struct StoredLinear {
  const TensorEntry* entry = nullptr;  // the weight tensor
  TensorFormat format;                 // element and scale grid; plain for BF16, F16, F32 and dequantized GGUF blocks
  int64_t rows = 0, cols = 0;
  std::vector<float> scales;  // grid widened to FP32 [format.scale_rows(rows), format.scale_cols(cols)]
  std::vector<float> zeros;   // zero points of the same grid
  OuterScale outer;           // format.outer() only
  std::shared_ptr<const AlignedBytes> decoded;  // codes in Octavo's order, where the dialect packs them another way
  std::optional<float> input_scale;             // static activation scale
  std::optional<std::vector<float>> bias;       // [rows]
  StoredOutliers outliers;                      // beside the codes, which take no part in these channels

  // Whether there are codes to look at: else rows come through TensorReader::read_f32.
  bool in_place() const { return decoded != nullptr || entry->plain.has_value(); }
  MatrixView view() const {
    return {format,        rows,         cols, decoded ? decoded->data() : entry->plain->data.data(),
            scales.data(), zeros.data(), outer};
  }
};

struct KvScales {
  std::vector<float> k, v;  // one value, or one per KV head; empty where the checkpoint has none
};

class Checkpoint {
 public:
  // A folder with config.json and *.safetensors, or a .gguf file.
  static Result<Checkpoint> open(const std::filesystem::path& path);
  // An unquantized model in `base`'s place, with other tensors: what a quantizer makes of them before it rounds them.
  // `config` describes them.
  static Result<Checkpoint> derive(const Checkpoint& base, ModelConfig config, std::unique_ptr<TensorReader> tensors);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::filesystem::path& path() const;
  bool is_gguf() const;
  const ModelConfig& config() const;
  const GenerationConfig& generation_config() const;
  const TensorReader& tensors() const;

  // What the checkpoint itself says: its quantization_config as a plan (scheme "checkpoint"), cross-checked with the
  // tensors; everything BF16 where it has none. KV formats: bf16, or what kv_cache_scheme says.
  const PrecisionPlan& stored_plan() const;
  std::string_view dialect() const;  // "none", "gguf", or a name of the table in dialect.cc

  // The weight (and scales, bias) of a module of config().linear_modules(). lm_head of a tied model gives the
  // embedding.
  Result<StoredLinear> linear(std::string_view module) const;
  Result<KvScales> kv_scales(int layer) const;
  // octavo_kv.json of the folder, or the file that was given instead; null where there is none.
  const KvCalibration* kv_calibration() const;
  // Takes another file, as if it lay in the folder: the stored plan's KV cache becomes what it asks for.
  Result<void> use_kv_calibration(const std::filesystem::path& path);
  // A vector or matrix kept wide (norms, embedding), as FP32. Checks the shape.
  Result<std::vector<float>> wide(std::string_view name, const Shape& shape) const;
  // The entry of a tensor that will be used as it is (embedding), checked for its shape.
  Result<const TensorEntry*> entry(std::string_view name, const Shape& shape) const;

  // Accounting: linear(), kv_scales(), wide() and entry() mark what they hand out.
  // Tensors nobody used: {name, why it is harmless}, or an error for the first one that is not on the list of known
  // extras (rotary inv_freq, layers past num_layers, a head beside tied embeddings, ...).
  struct Unused {
    std::string name, why;
  };
  Result<std::vector<Unused>> unused() const;
  // Things found that a person should know: stored NaN codes, missing KV scales per layer, ...
  const std::vector<std::string>& notes() const;

 private:
  Checkpoint();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octavo
