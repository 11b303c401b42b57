// Lists of modules as quantization configs give them: names, parts of names, wildcards, "re:" patterns.
// Include only in .cc files.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "precision/name_rule.h"

namespace octavo {

class ModuleList {
 public:
  // The strings under these keys of a config.
  static Result<ModuleList> read(const Json& config, std::initializer_list<std::string_view> keys,
                                 std::string_view path);

  // The entry that covers a module; nullptr when none does. An entry covers the name itself, a part or a parent of it
  // cut at dots ("self_attn" covers "model.layers.0.self_attn.q_proj", "gate" does not cover "mlp.gate_proj"), with or
  // without "model." in front; "*" stands for anything; fused names (qkv_proj, gate_up_proj) stand for their parts.
  Result<const std::string*> find(std::string_view module);
  // Notes about entries that found no module and no tensor.
  void note_unused(const TensorReader& tensors, std::vector<std::string>& notes) const;

 private:
  struct Entry {
    std::string text;
    std::optional<NameRule> pattern;  // "re:..." entries
    bool hit = false;
  };
  static Result<bool> covers(const Entry& entry, std::string_view name);
  std::vector<Entry> entries_;
};

}  // namespace octavo
