#include "engine/model.h"

#include <algorithm>
#include <chrono>

#include "base/file.h"
#include "base/json.h"

namespace octavo {

namespace {

// A quantized checkpoint that says nothing of its KV cache: the cache follows the activations, as in the schemes.
void follow_activations(PrecisionPlan& plan, const KvCalibration* calibration) {
  for (size_t layer = 0; layer < plan.kv.size(); ++layer) {
    const bool said = calibration != nullptr && !calibration->layers[layer].k.empty();
    if (said) continue;  // octavo_kv.json may keep a layer wide
    const ElementType element = plan.linear(fmt::format("model.layers.{}.self_attn.k_proj", layer)).activation.element;
    KvPlan& kv = plan.kv[layer];
    if (kv.k.scaled() || kv.v.scaled() || (element != ElementType::kE4m3 && element != ElementType::kInt8)) continue;
    kv = {row_format(element), row_format(element),
          fmt::format("default beside {} activations", element_name(element))};
  }
}

}  // namespace

Result<PrecisionPlan> resolve_plan(const Checkpoint& checkpoint, const PlanRequest& request) {
  if (request.file != nullptr || (!request.scheme.empty() && request.scheme != "auto")) {
    OCTAVO_ASSIGN(PrecisionPlan made, make_plan(checkpoint.config(), request));
    // They come with the weights, whatever these are requantized to.
    for (auto& [name, linear] : made.linears) linear.outliers = checkpoint.stored_plan().linear(name).outliers;
    return made;
  }
  PrecisionPlan plan = checkpoint.stored_plan();
  if (!request.ignore.empty() || !request.overrides.empty())
    return fail({.what = "--ignore and overrides need a scheme to apply to",
                 .where = checkpoint.path().string(),
                 .remedy = "name one with --quantization"});
  follow_activations(plan, checkpoint.kv_calibration());
  OCTAVO_TRY(apply_kv_request(plan, request));
  return plan;
}

Result<PlannedCheckpoint> open_planned(const std::filesystem::path& path, const ModelOptions& options) {
  OCTAVO_ASSIGN(Checkpoint checkpoint, Checkpoint::open(path));
  if (!options.plan.kv_calibration.empty()) OCTAVO_TRY(checkpoint.use_kv_calibration(options.plan.kv_calibration));
  if (options.exact_plan) return PlannedCheckpoint{std::move(checkpoint), *options.exact_plan};
  OCTAVO_ASSIGN(PrecisionPlan plan, resolve_plan(checkpoint, options.plan));
  return PlannedCheckpoint{std::move(checkpoint), std::move(plan)};
}

Result<std::unique_ptr<Model>> Model::load(const std::filesystem::path& path, const ModelOptions& options,
                                           const std::function<void(LoadProgress)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  OCTAVO_ASSIGN(PlannedCheckpoint planned, open_planned(path, options));
  auto model = std::unique_ptr<Model>(new Model(std::move(planned.checkpoint)));
  model->plan_ = std::move(planned.plan);
  model->isa_ = options.isa.value_or(best_isa());
  if (!isa_available(model->isa_))
    return fail({.what = fmt::format("this machine cannot run --isa {}", isa_name(model->isa_)),
                 .where = cpu_features().model,
                 .expected = fmt::format("{} or below", isa_name(best_isa())),
                 .remedy = "leave --isa out to let Octavo choose"});
  model->pool_ = std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : available_cores());
  if (options.text) OCTAVO_TRY(model->load_text(path, options.chat_template));
  model->find_end_tokens();
  OCTAVO_ASSIGN(model->decoder_, Decoder::load(model->checkpoint_, model->plan_, model->isa_, *model->pool_, progress));
  if (options.greedy_head) OCTAVO_TRY(model->decoder_.load_greedy_head(model->checkpoint_, model->isa_, *model->pool_));
  model->load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

Result<void> Model::load_text(const std::filesystem::path& path, const std::filesystem::path& chat_template) {
  OCTAVO_ASSIGN(tokenizer_, Tokenizer::open(path));
  OCTAVO_ASSIGN(chat_format_, read_chat_format(path));
  if (!chat_template.empty()) {
    OCTAVO_ASSIGN(chat_format_.template_source, read_text_file(chat_template, size_t{4} << 20));
  }
  if (chat_format_.template_source.empty()) return {};
  const std::string where = chat_template.empty() ? "chat template of " + path.string() : chat_template.string();
  OCTAVO_ASSIGN(template_, ChatTemplate::parse(chat_format_.template_source, where));
  return {};
}

KvGeometry Model::kv_geometry() const {
  KvGeometry geometry;
  for (const KvPlan& kv : plan_.kv)
    geometry.layers.push_back({.k = kv.k,
                               .v = kv.v,
                               .k_wide = kv.k_options.wide_tokens,
                               .v_wide = kv.v_options.wide_tokens,
                               .k_rescale = kv.k_options.rescale_tokens,
                               .v_rescale = kv.v_options.rescale_tokens});
  geometry.num_kv_heads = static_cast<int>(config().num_kv_heads);
  geometry.head_dim = static_cast<int>(config().head_dim);
  return geometry;
}

PagePool Model::make_kv_cache(int64_t tokens) const {
  PagePool pool(kv_geometry(), static_cast<int32_t>((tokens + kPageTokens - 1) / kPageTokens));
  decoder_.attach_kv_scales(pool.layers());
  return pool;
}

Result<std::string> Model::render_chat(const Json& messages, bool add_generation_prompt) const {
  return render_chat(messages, Json{{"add_generation_prompt", add_generation_prompt}});
}

Result<std::string> Model::render_chat(const Json& messages, const Json& more) const {
  if (!template_)
    return fail(
        {.what = "the model has no chat template",
         .where = checkpoint_.path().string(),
         .remedy = "give plain text with --prompt and --raw, or add chat_template.jinja to the model's folder"});
  Json variables = more;
  variables["messages"] = messages;
  variables.emplace("add_generation_prompt", true);
  variables["bos_token"] = chat_format_.bos_token;
  variables["eos_token"] = chat_format_.eos_token;
  variables["pad_token"] = chat_format_.pad_token;
  variables["unk_token"] = chat_format_.unk_token;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return template_->render(variables, {}, std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

void Model::find_end_tokens() {
  std::vector<int64_t> ids = config().eos_token_ids;
  const std::vector<int64_t>& more = checkpoint_.generation_config().eos_token_ids;
  ids.insert(ids.end(), more.begin(), more.end());
  if (!chat_format_.eos_token.empty() && tokenizer_)
    if (const auto id = tokenizer_->token_id(chat_format_.eos_token)) ids.push_back(*id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  std::erase_if(ids, [this](int64_t id) { return id < 0 || id >= config().vocab_size; });
  end_tokens_.assign(ids.begin(), ids.end());
}

}  // namespace octavo
