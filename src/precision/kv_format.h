// How a KV cache is spelled: FORMAT[:OPTION...], for example "fp8_e4m3:static:wide4". Flags, tables, plan files and
// octavo_kv.json read and write the same text.
//
//   dynamic      a scale per token and head, computed when the token is written, where the checkpoint stores others
//   static       a calibrated scale per head
//   tensor       a calibrated scale for all heads
//   channel      K: a calibrated scale and zero point per channel of a head
//   blockN       a scale per head, anew every N tokens from the N before; the first one is calibrated
//   wideN        the first N tokens of a text in BF16
//   temperature  queries times the layer's calibrated factor
//   skipLAYERS   these layers in BF16: "skip0-1+29"; for a whole model only
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "precision/plan.h"

namespace octavo {

// K or V of one layer.
struct KvSide {
  TensorFormat format;
  KvOptions options;
  bool dynamic = false;  // asked for by name

  bool stored() const { return format.scaled() && format.scale_time == ScaleTime::kStored; }
};

// A text for a whole model.
struct KvRequest {
  KvSide k, v;
  std::vector<std::pair<int, int>> skip;  // layers from .. to, both in
};

enum class KvPart : uint8_t { kBoth, kK, kV };

// Options that concern keys alone ("channel", "temperature") are an error for kV. With "channel", V is computed per
// token unless "static" or "tensor" stands beside it. Error: an unknown name, options that do not go together.
Result<KvRequest> parse_kv(std::string_view text, KvPart part = KvPart::kBoth);
// Of one layer: no "skip".
Result<KvSide> parse_kv_side(std::string_view text, KvPart part);

// The spelling that parse_kv_side reads.
std::string kv_side_name(const TensorFormat& format, const KvOptions& options);
std::string kv_name(const KvPlan& kv);  // of both, "K/V" where they differ
// For people: "fp8_e4m3 per row, stored scale, first 4 tokens bf16".
std::string describe_kv(const TensorFormat& format, const KvOptions& options);

// One line for --help.
std::string_view kv_spelling();

}  // namespace octavo
