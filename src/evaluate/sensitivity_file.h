// What lowering each tensor alone costs, and its file: measured by evaluate/sensitivity.h, searched by
// evaluate/plan_search.h.
//
//   {"octavo_sensitivity": 1, "model": {as in a plan file}, "base": "bf16", "tokens": 8192, "context": 1024,
//    "base_perplexity": x, "base_bytes": n,
//    "entries": [{"layer": 0, "role": "q_proj", "scheme": "fp8", "perplexity_change": x,
//                 "perplexity_change_error": x, "kl": x, "output_error": x, "bytes": n, "base_bytes": n,
//                 "class": "free"}, ...]}
//
// role: "q_proj" .. "down_proj", "lm_head" (layer -1), "k_cache" and "v_cache" (scheme: a KV format).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "precision/plan_file.h"

namespace octavo {

enum class SensitivityClass : uint8_t { kFree, kWatch, kKeepWide };
std::string_view class_name(SensitivityClass value);  // "free", "watch", "keep wide"

inline constexpr std::string_view kKeyCache = "k_cache", kValueCache = "v_cache";

struct SensitivityEntry {
  int layer = 0;  // -1: the head
  std::string role, scheme;
  double perplexity_change = 0;        // lowered / base - 1
  double perplexity_change_error = 0;  // its standard error: paired, over the windows
  double kl = 0;                       // mean KL(base || lowered), nats
  // Of the hidden states after the layer (of the head: of the logits): mean over the tokens of |lowered - base|^2 /
  // |base|^2.
  double output_error = 0;
  int64_t bytes = 0, base_bytes = 0;  // of the weight as its format stores it, scales included; of a cache, per token

  // The relative loss of perplexity that the evidence bears out: exp(KL) - 1, what the loss would be on text that the
  // base wrote itself, which has far less noise; more where the change on the text lies above that by two standard
  // errors.
  double loss() const;
  SensitivityClass verdict() const;  // loss() below 0.1 %, below 1 %, beyond
  bool of_cache() const { return role == kKeyCache || role == kValueCache; }
};

struct Sensitivity {
  ModelShape model;
  std::string base;                 // scheme
  int64_t tokens = 0, context = 0;  // tokens: of all windows
  double base_perplexity = 0;
  int64_t base_bytes = 0;  // of all linear weights, the head's too
  std::vector<SensitivityEntry> entries;
};

// Names of the measured schemes, or of the caches' formats, in the file's order.
std::vector<std::string> measured_schemes(const Sensitivity& sensitivity, bool cache);

std::string sensitivity_text(const Sensitivity& sensitivity);
// Errors: not such a file, a key that is missing or of the wrong type, values that are not finite or make no sense.
Result<Sensitivity> parse_sensitivity(std::string_view json, const std::filesystem::path& path);
Result<Sensitivity> read_sensitivity(const std::filesystem::path& path);

}  // namespace octavo
