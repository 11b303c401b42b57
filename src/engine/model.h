// Model: a checkpoint made ready to run: plan, weights, tokenizer, chat template, threads.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "kernels/isa.h"
#include "kv_cache/page_pool.h"
#include "models/decoder.h"
#include "parallel/thread_pool.h"
#include "precision/plan.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace octavo {

struct ModelOptions {
  PlanRequest plan;
  std::optional<PrecisionPlan> exact_plan;  // this one, for this checkpoint's modules, instead of what `plan` asks for
  int threads = 0;                          // 0: all cores this process may use
  std::optional<Isa> isa;                   // none: the fastest of this machine
  bool text = true;                         // also load tokenizer and chat template
  bool greedy_head = false;                 // also what finds the highest logit sooner (models/layers/greedy_head.h)
  std::filesystem::path chat_template;      // a Jinja file, instead of the model's template
};

class Model {
 public:
  static Result<std::unique_ptr<Model>> load(const std::filesystem::path& path, const ModelOptions& options,
                                             const std::function<void(LoadProgress)>& progress = {});

  const Checkpoint& checkpoint() const { return checkpoint_; }
  const ModelConfig& config() const { return checkpoint_.config(); }
  const PrecisionPlan& plan() const { return plan_; }
  Isa isa() const { return isa_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Decoder& decoder() { return decoder_; }
  const Decoder& decoder() const { return decoder_; }
  ThreadPool& pool() { return *pool_; }
  double load_seconds() const { return load_seconds_; }

  // KV memory for `tokens` tokens, with the checkpoint's scales attached.
  PagePool make_kv_cache(int64_t tokens) const;
  KvGeometry kv_geometry() const;

  // The prompt of a conversation as the model's template spells it. Error where the model has no template.
  Result<std::string> render_chat(const Json& messages, bool add_generation_prompt = true) const;
  // With further variables: an object of tools, add_generation_prompt (true where it is missing), and what else the
  // template knows.
  Result<std::string> render_chat(const Json& messages, const Json& variables) const;
  const ChatFormat& chat_format() const { return chat_format_; }
  bool has_chat_template() const { return template_.has_value(); }
  // End-of-sequence tokens of config, generation_config and tokenizer.
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }
  bool is_end(TokenId id) const { return std::binary_search(end_tokens_.begin(), end_tokens_.end(), id); }

 private:
  explicit Model(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  Result<void> load_text(const std::filesystem::path& path, const std::filesystem::path& chat_template);
  void find_end_tokens();

  Checkpoint checkpoint_;
  PrecisionPlan plan_;
  Isa isa_ = Isa::kReference;
  std::unique_ptr<ThreadPool> pool_;
  Decoder decoder_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  ChatFormat chat_format_;
  std::vector<TokenId> end_tokens_;  // in order
  double load_seconds_ = 0;
};

// The plan that a checkpoint and a request give: the request's scheme or plan file, else what the checkpoint says, with
// the request's KV formats over it.
Result<PrecisionPlan> resolve_plan(const Checkpoint& checkpoint, const PlanRequest& request);

// What Model::load() opens: the checkpoint with the KV values that `options` names, and the plan it will run. Who
// speaks of a model without loading it asks here, so that both have the same plan.
struct PlannedCheckpoint {
  Checkpoint checkpoint;
  PrecisionPlan plan;
};
Result<PlannedCheckpoint> open_planned(const std::filesystem::path& path, const ModelOptions& options);

}  // namespace octavo
