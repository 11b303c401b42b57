// PrecisionPlan: which tensor gets which TensorFormat, and why. The quantizer, the loader, the evaluator and the memory
// plan read this and nothing else decides a precision.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/tensor_format.h"

namespace octavo {

// What a linear layer does in the decoder. Rules and reports speak of roles; schemes may treat them apart.
enum class Role : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown, kRouter, kHead };
std::string_view role_name(Role role);  // "q_proj", ..., "router", "lm_head"

// One linear layer of the model, by the name its module has on the hub ("model.layers.3.self_attn.q_proj", "lm_head").
struct LinearModule {
  std::string name;
  Role role;
  int layer;           // -1 for lm_head
  int64_t rows, cols;  // [out, in]
  int expert = -1;     // which of the layer's experts it belongs to; -1: none
};

struct LinearPlan {
  TensorFormat weight;      // plain, or scaled (scales are always stored beside the weight)
  TensorFormat activation;  // what the layer's input is when it enters the product
  std::string
      reason;  // "scheme fp8", "checkpoint", "ignored: lm_head", "override re:.*down_proj", "tied to the embedding"
  int64_t outliers = 0;  // input channels of BF16 weights and FP32 activations (checkpoint/outliers.h)

  bool operator==(const LinearPlan&) const = default;
};

// What the K or the V of a layer adds to its format. Spelled behind the format's name: precision/kv_format.h.
struct KvOptions {
  bool tensor_scale = false;  // stored scales: one for all heads
  bool channels = false;      // K: a stored scale and zero point per channel of a head
  bool temperature = false;   // K: queries times a calibrated factor
  int wide_tokens = 0;        // the first tokens of a text are kept in BF16
  int rescale_tokens = 0;     // a new scale every so many tokens, from those before; the first is stored

  bool operator==(const KvOptions&) const = default;
};

struct KvPlan {
  TensorFormat k,
      v;  // rows are (token, head) pairs; scale_time kStored: scales from the checkpoint or its calibration
  std::string reason;
  KvOptions k_options = {}, v_options = {};

  bool operator==(const KvPlan&) const = default;
};

// A named scheme: the row of a table (schemes.cc).
struct Scheme {
  std::string_view name;     // "fp8"
  std::string_view summary;  // one line for --help
  TensorFormat weight, activation, kv;
};

struct PrecisionPlan {
  std::string scheme;  // the scheme's name, or "checkpoint"
  std::map<std::string, LinearPlan, std::less<>> linears;
  std::vector<KvPlan> kv;          // one per layer
  std::vector<std::string> notes;  // "ignore rule 're:.*foo' matches no module", ...

  const LinearPlan& linear(std::string_view module) const;  // checked
};

struct PlanFile;  // precision/plan_file.h

// What the user asked for on top of a scheme, a plan file or a checkpoint.
struct PlanRequest {
  std::string scheme;                    // empty: the plan file, else what the checkpoint says
  std::shared_ptr<const PlanFile> file;  // instead of a scheme; without ignore and overrides
  std::vector<std::string>
      ignore;  // modules left in BF16: exact name, "re:PATTERN" (anchored at the start), or role name
  std::vector<std::pair<std::string, std::string>> overrides;  // rule -> scheme name
  // Empty or "auto": what the scheme or checkpoint says. Else as precision/kv_format.h spells it.
  std::string kv_cache_dtype, k_dtype, v_dtype;
  std::string kv_calibration;  // an octavo_kv.json that stands for the one in the model's folder
};

const std::vector<Scheme>& schemes();
Result<const Scheme*> find_scheme(std::string_view name);  // error lists the known names
// A format alone: "bf16", "fp8_e4m3" (alias "fp8"), "fp8_e5m2", "int8", "float32". With options: precision/kv_format.h.
Result<TensorFormat> kv_format(std::string_view name);

// Does `rule` ("lm_head", "re:.*\.down_proj", "down_proj") match this module?
Result<bool> rule_matches(std::string_view rule, const LinearModule& module);

// A router's product: FP32, of whatever is stored. Two experts' scores are often closer than BF16 tells apart.
LinearPlan router_plan(std::string reason);

// The plan of a scheme for these modules. lm_head stays BF16 (FP32 for scheme float32) and routers FP32 unless an
// override names them. A rule that matches nothing is an entry in notes; a scheme that a shape does not allow is an
// error that names the module. (A request with a plan file needs the model's config: checkpoint/model_config.h.)
Result<PrecisionPlan> make_plan(const std::vector<LinearModule>& modules, int num_layers, const PlanRequest& request);

// Whether a weight of this shape can be stored so: rows are whole bytes. The error names the module.
Result<void> check_weight_shape(const LinearModule& module, const TensorFormat& weight);

// The KV part alone, laid over a plan (checkpoints and schemes alike): kv_cache_dtype first, then k_dtype and v_dtype.
Result<void> apply_kv_request(PrecisionPlan& plan, const PlanRequest& request);

}  // namespace octavo
