#include "quantize/calibration_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

namespace octavo {
namespace {

constexpr int64_t kFitSamples = 32;  // the first samples, which a layer's source is fitted on

PrecisionPlan wide_plan(const PrecisionPlan& plan) {
  PrecisionPlan wide = plan;
  const TensorFormat bf16 = plain_format(ElementType::kBf16);
  for (auto& [name, linear] : wide.linears) linear.weight = linear.activation = bf16;
  for (KvPlan& kv : wide.kv) kv.k = kv.v = bf16;
  return wide;
}

int64_t row_stride(ElementType element, int64_t cols) {
  return (cols * element_bits(element) / 8 + 63) / 64 * 64;
}

// Bytes of the widest row that one step hands to the next.
int64_t largest_held_row(const ModelConfig& config, const PrecisionPlan& plan) {
  int64_t row = 0;
  for (const LinearModule& module : config.linear_modules()) {
    if (module.role != Role::kO && module.role != Role::kDown) continue;
    const bool bf16 = plan.linear(module.name).activation == plain_format(ElementType::kBf16);
    const int64_t own = row_stride(bf16 ? ElementType::kBf16 : ElementType::kF32, module.cols);
    row = std::max(row, module.expert < 0 ? own : own * config.experts->per_token);
  }
  return row;
}

}  // namespace

CalibrationPass::CalibrationPass(const Checkpoint& checkpoint, const PrecisionPlan& plan, const CalibrationSet& samples,
                                 PassOptions options, ThreadPool& pool)
    : checkpoint_(checkpoint),
      plan_(plan),
      wide_plan_(wide_plan(plan)),
      set_(samples),
      options_(std::move(options)),
      pool_(pool),
      loader_(checkpoint, plan, options_.isa, pool, report_),
      wide_loader_(checkpoint, wide_plan_, options_.isa, pool, report_),
      runner_(checkpoint.config(), options_.isa) {
  for (const auto& sample : set_.samples) longest_ = std::max(longest_, static_cast<int64_t>(sample.size()));
  page_table_.resize(static_cast<size_t>((longest_ + kPageTokens - 1) / kPageTokens));
  std::iota(page_table_.begin(), page_table_.end(), 0);
  for (const LinearModule& module : checkpoint.config().linear_modules()) {
    const bool bf16 = plan.linear(module.name).activation == plain_format(ElementType::kBf16);
    ElementType& held = held_elements_.try_emplace(place_of(module), ElementType::kBf16).first->second;
    if (!bf16) held = ElementType::kF32;
  }
}

// BF16 where the layers read BF16: then holding loses nothing.
ElementType CalibrationPass::held_element(const LinearPlace& place) const {
  return held_elements_.at(place);
}

Activation CalibrationPass::held_rows(const LinearPlace& place, int64_t rows, std::byte* memory) const {
  const ElementType element = held_element(place);
  const int64_t cols = input_cols(checkpoint_.config(), place);
  return {.format = plain_format(element),
          .rows = rows,
          .cols = cols,
          .codes = memory,
          .code_stride = row_stride(element, cols)};
}

int64_t CalibrationPass::widest_row(std::span<const LinearPlace> places) const {
  int64_t row = 0;
  for (const LinearPlace& place : places)
    row = std::max(row, row_stride(held_element(place), input_cols(checkpoint_.config(), place)));
  return row;
}

CalibrationPass::Held CalibrationPass::held(const ModelConfig& config, const PrecisionPlan& plan,
                                            const CalibrationSet& samples) {
  int64_t longest = 0;
  for (const auto& sample : samples.samples) longest = std::max(longest, static_cast<int64_t>(sample.size()));
  const int64_t rows = static_cast<int64_t>(samples.samples.size()) * longest;
  return {rows * config.hidden_size * static_cast<int64_t>(sizeof(float)), rows * largest_held_row(config, plan)};
}

// Half of the limit for the residual stream, half for what a step hands to the next.
Result<void> CalibrationPass::prepare() {
  const ModelConfig& c = checkpoint_.config();
  const auto samples = static_cast<int64_t>(set_.samples.size());
  OCTAVO_ASSIGN(x_, SampleStore::create(samples, longest_ * c.hidden_size * static_cast<int64_t>(sizeof(float)),
                                        options_.memory_limit / 2, options_.spill_folder));
  OCTAVO_ASSIGN(const Embedding embedding, load_embedding(checkpoint_, plan_, report_));
  const TensorEntry& entry = *checkpoint_.tensors().find("model.embed_tokens.weight");
  for (int64_t s = 0; s < samples; ++s) {
    float* x = reinterpret_cast<float*>(x_.overwrite(s));
    embed(embedding.view, set_.samples[static_cast<size_t>(s)], x, c.hidden_size);
    checkpoint_.tensors().forget(entry, 0, c.vocab_size);
    OCTAVO_TRY(x_.save(s));
  }
  end_phase();
  return {};
}

// One store for all layers: memory taken anew each time would be cleared page by page.
Result<void> CalibrationPass::make_held(int64_t row_bytes) {
  if (held_.empty()) {
    const int64_t largest = longest_ * largest_held_row(checkpoint_.config(), plan_);
    OCTAVO_ASSIGN(held_, SampleStore::create(std::ssize(set_.samples), largest, options_.memory_limit / 2,
                                             options_.spill_folder));
  }
  held_.use_slabs(longest_ * row_bytes);
  return {};
}

PagedKvLayer CalibrationPass::fresh_kv(const KvPlan& plan, int64_t tokens) {
  const ModelConfig& c = checkpoint_.config();
  PagedKvLayer kv{
      .k_format = plan.k, .v_format = plan.v, .layout = {plan.k.element, plan.v.element, static_cast<int>(c.head_dim)}};
  kv.num_kv_heads = static_cast<int>(c.num_kv_heads);
  kv.pages_per_extent = static_cast<int>((tokens + kPageTokens - 1) / kPageTokens);
  kv.head_stride = kv.layout.page_bytes() * static_cast<size_t>(kv.pages_per_extent);
  kv.extent_stride = kv.head_stride * static_cast<size_t>(kv.num_kv_heads);
  if (kv_memory_.size() < kv.extent_stride) kv_memory_ = AlignedBytes(kv.extent_stride);
  std::memset(kv_memory_.data(), 0, kv.extent_stride);
  kv.base = kv_memory_.data();
  return kv;
}

void CalibrationPass::end_phase() const {
  if (options_.phase) options_.phase(x_.bytes_held() + held_.bytes_held());
}

// The first `most` samples.
Result<void> CalibrationPass::each_sample(bool changes_x, std::string_view what, EachSample body, int64_t most) {
  const auto samples = std::min(std::ssize(set_.samples), most);
  for (int64_t s = 0; s < samples; ++s) {
    const auto tokens = static_cast<int64_t>(set_.samples[static_cast<size_t>(s)].size());
    OCTAVO_ASSIGN(std::byte* const slab, x_.open(s));
    const KvSequence sequence{.row_begin = 0, .num_rows = tokens, .position = 0, .page_table = page_table_.data()};
    OCTAVO_TRY(body(s, {reinterpret_cast<float*>(slab), tokens, {&sequence, 1}}));
    if (changes_x) OCTAVO_TRY(x_.save(s));
    done_ += 1;
    if (options_.progress) options_.progress(done_, total_, what);
  }
  done_ += static_cast<double>(std::ssize(set_.samples) - samples);
  return {};
}

// held -> the format that a group reads.
void CalibrationPass::hand_on(const Activation& held, const Activation& out) {
  const auto element = held.format.element;
  const int64_t outliers = std::ssize(out.outlier_channels);
  if (out.format == held.format) {
    pool_.parallel_for(held.rows, 64, [&](int64_t begin, int64_t end, int) {
      std::memcpy(out.row(begin), held.row(begin), static_cast<size_t>((end - begin) * held.code_stride));
      for (int64_t at = begin * outliers; at < end * outliers; ++at) {
        std::byte* const row = out.row(at / outliers);
        const auto channel = static_cast<size_t>(out.outlier_channels[static_cast<size_t>(at % outliers)]);
        out.outliers[at] = load_element(element, row, channel);
        store_element(element, row, channel, 0.0f);
      }
    });
  } else {
    runner_.producers().quantize({reinterpret_cast<const float*>(held.codes), held.code_stride / 4, out}, pool_);
  }
}

Result<void> CalibrationPass::attention_steps(int index, DecoderLayer& layer, PassVisitor& visitor) {
  const ModelConfig& c = checkpoint_.config();
  const std::string what = fmt::format("layer {}", index);
  const LinearPlace qkv{index, LinearInput::kQkv}, o{index, LinearInput::kO};
  const Result<void> qkv_seen = each_sample(false, what, [&](int64_t s, const LayerRows& r) -> Result<void> {
    const Activation in = seen_.resize(plain_format(held_element(qkv)), r.rows, c.hidden_size);
    runner_.norm(layer.input_norm, r.x, in, pool_);
    return visitor.see(qkv, s, in);
  });
  if (!qkv_seen) return qkv_seen;
  OCTAVO_ASSIGN(layer.qkv, visitor.group(qkv, loader_));
  end_phase();
  OCTAVO_TRY(make_held(widest_row({&o, 1})));
  const Result<void> o_seen = each_sample(false, what, [&](int64_t s, const LayerRows& r) -> Result<void> {
    const PagedKvLayer kv = fresh_kv(plan_.kv[static_cast<size_t>(index)], r.rows);
    const auto norm = [&](const Activation& out) { runner_.norm(layer.input_norm, r.x, out, pool_); };
    runner_.project_qkv(layer.qkv, layer, r, kv, norm, pool_);
    const float* k = runner_.qkv_rows() + c.q_size();
    OCTAVO_TRY(visitor.see_kv(index, s, r.rows, k, k + c.kv_size(), runner_.qkv_stride()));
    const Activation out = held_rows(o, r.rows, held_.overwrite(s));
    runner_.attend(layer, r, kv, out, pool_);
    OCTAVO_TRY(visitor.see(o, s, out));
    return held_.save(s);
  });
  if (!o_seen) return o_seen;
  OCTAVO_ASSIGN(layer.o, visitor.group(o, loader_));
  end_phase();
  return {};
}

// x += o(what attend() held)
Result<void> CalibrationPass::add_attention(int index, const DecoderLayer& layer, int64_t sample, const LayerRows& r) {
  OCTAVO_ASSIGN(std::byte* const slab, held_.open(sample));
  const Activation held = held_rows({index, LinearInput::kO}, r.rows, slab);
  runner_.add_projection(
      layer.o, r, [&](const Activation& out) { hand_on(held, out); }, pool_);
  return {};
}

Result<void> CalibrationPass::dense_steps(int index, DecoderLayer& layer, PassVisitor& visitor) {
  const ModelConfig& c = checkpoint_.config();
  const std::string what = fmt::format("layer {}", index);
  const LinearPlace gate_up{index, LinearInput::kGateUp}, down{index, LinearInput::kDown};
  const Result<void> gate_up_seen = each_sample(true, what, [&](int64_t s, const LayerRows& r) -> Result<void> {
    OCTAVO_TRY(add_attention(index, layer, s, r));
    const Activation in = seen_.resize(plain_format(held_element(gate_up)), r.rows, c.hidden_size);
    runner_.norm(layer.post_norm, r.x, in, pool_);
    return visitor.see(gate_up, s, in);
  });
  if (!gate_up_seen) return gate_up_seen;
  OCTAVO_ASSIGN(layer.gate_up, visitor.group(gate_up, loader_));
  end_phase();
  OCTAVO_TRY(make_held(widest_row({&down, 1})));
  const Result<void> down_seen = each_sample(false, what, [&](int64_t s, const LayerRows& r) -> Result<void> {
    const auto norm = [&](const Activation& out) { runner_.norm(layer.post_norm, r.x, out, pool_); };
    runner_.project_gate_up(layer.gate_up, r.rows, norm, pool_);
    const Activation out = held_rows(down, r.rows, held_.overwrite(s));
    runner_.silu_gate(out, pool_);
    OCTAVO_TRY(visitor.see(down, s, out));
    return held_.save(s);
  });
  if (!down_seen) return down_seen;
  OCTAVO_ASSIGN(layer.down, visitor.group(down, loader_));
  const Result<void> done = each_sample(true, what, [&](int64_t s, const LayerRows& r) -> Result<void> {
    OCTAVO_ASSIGN(std::byte* const slab, held_.open(s));
    const Activation held = held_rows(down, r.rows, slab);
    runner_.add_projection(
        layer.down, r, [&](const Activation& out) { hand_on(held, out); }, pool_);
    return {};
  });
  end_phase();
  return done;
}

int64_t CalibrationPass::fit_tokens(const CalibrationSet& samples) {
  int64_t tokens = 0;
  for (int64_t s = 0; s < std::min(std::ssize(samples.samples), kFitSamples); ++s)
    tokens += std::ssize(samples.samples[static_cast<size_t>(s)]);
  return tokens;
}

// The layer as its source has it, on a few samples that go on as if nothing had been: what each group reads.
Result<void> CalibrationPass::fit_steps(int index, PassVisitor& visitor) {
  const ModelConfig& c = checkpoint_.config();
  const TensorFormat bf16 = plain_format(ElementType::kBf16);
  OCTAVO_ASSIGN(const DecoderLayer layer, wide_loader_.load(index));
  fit_x_ = AlignedArray<float>(static_cast<size_t>(longest_ * c.hidden_size));
  const auto copy_of = [](const Activation& rows) {
    return [&rows](const Activation& out) {
      std::memcpy(out.codes, rows.codes, static_cast<size_t>(rows.rows * rows.code_stride));
    };
  };
  const auto start = std::chrono::steady_clock::now();
  const Result<void> seen = each_sample(
      false, fmt::format("layer {}", index),
      [&](int64_t s, const LayerRows& held) -> Result<void> {
        std::copy_n(held.x, held.rows * c.hidden_size, fit_x_.data());
        const LayerRows r{fit_x_.data(), held.rows, held.sequences};
        const Activation normed = seen_.resize(bf16, r.rows, c.hidden_size);
        runner_.norm(layer.input_norm, r.x, normed, pool_);
        OCTAVO_TRY(visitor.see_source({index, LinearInput::kQkv}, s, normed));
        const PagedKvLayer kv = fresh_kv(wide_plan_.kv[static_cast<size_t>(index)], r.rows);
        runner_.project_qkv(layer.qkv, layer, r, kv, copy_of(normed), pool_);
        const Activation attended = attended_.resize(bf16, r.rows, c.q_size());
        runner_.attend(layer, r, kv, attended, pool_);
        OCTAVO_TRY(visitor.see_source({index, LinearInput::kO}, s, attended));
        runner_.add_projection(layer.o, r, copy_of(attended), pool_);
        const Activation mlp = seen_.resize(bf16, r.rows, c.hidden_size);
        runner_.norm(layer.post_norm, r.x, mlp, pool_);
        OCTAVO_TRY(visitor.see_source({index, LinearInput::kGateUp}, s, mlp));
        runner_.project_gate_up(layer.gate_up, r.rows, copy_of(mlp), pool_);
        const Activation gated = attended_.resize(bf16, r.rows, c.intermediate_size);
        runner_.silu_gate(gated, pool_);
        return visitor.see_source({index, LinearInput::kDown}, s, gated);
      },
      kFitSamples);
  if (!seen) return seen;
  fit_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  OCTAVO_TRY(visitor.fit(index));
  end_phase();
  return {};
}

Result<void> CalibrationPass::run_layer(int index, PassVisitor& visitor) {
  if (visitor.fits(index)) OCTAVO_TRY(fit_steps(index, visitor));
  OCTAVO_ASSIGN(DecoderLayer layer, loader_.frame(index));
  OCTAVO_TRY(attention_steps(index, layer, visitor));
  return layer.experts.empty() ? dense_steps(index, layer, visitor) : experts_steps(index, layer, visitor);
}

Result<void> CalibrationPass::run_through(int index, PassVisitor& visitor) {
  OCTAVO_ASSIGN(DecoderLayer layer, loader_.frame(index));
  for (const LinearPlace& place : layer_places(checkpoint_.config(), index)) {
    OCTAVO_ASSIGN(layer.group(place), visitor.group(place, loader_));
  }
  const Result<void> run =
      each_sample(true, fmt::format("layer {}", index), [&](int64_t, const LayerRows& r) -> Result<void> {
        runner_.attention_block(layer, r, fresh_kv(plan_.kv[static_cast<size_t>(index)], r.rows), pool_);
        runner_.mlp_block(layer, r, pool_);
        return {};
      });
  if (!run) return run;
  done_ += static_cast<double>((walks(index, visitor) - 1) * std::ssize(set_.samples));
  return {};
}

Result<void> CalibrationPass::see_head(PassVisitor& visitor) {
  OCTAVO_ASSIGN(const AlignedArray<float> weight, loader_.final_norm());
  const Result<void> head_seen = each_sample(false, "lm_head", [&](int64_t s, const LayerRows& r) -> Result<void> {
    const Activation in = seen_.resize(plain_format(held_element({})), r.rows, checkpoint_.config().hidden_size);
    runner_.norm(weight, r.x, in, pool_);
    return visitor.see({}, s, in);
  });
  if (!head_seen) return head_seen;
  OCTAVO_TRY(visitor.group({}, loader_));
  end_phase();
  return {};
}

Result<void> CalibrationPass::run(PassVisitor& visitor) {
  const int64_t all = checkpoint_.config().num_layers;
  const bool head = options_.head && visitor.watches(-1);
  auto layers = static_cast<int>(options_.layers < 0 ? all : std::min(all, options_.layers));
  while (!head && layers > 0 && !visitor.watches(layers - 1)) --layers;
  if (!head && layers == 0) return {};
  int64_t all_walks = head ? 1 : 0;
  for (int i = 0; i < layers; ++i) all_walks += walks(i, visitor);
  total_ = static_cast<double>(all_walks * std::ssize(set_.samples));
  OCTAVO_TRY(prepare());
  for (int i = 0; i < layers; ++i) {
    report_.linears.clear();
    OCTAVO_TRY(visitor.watches(i) ? run_layer(i, visitor) : run_through(i, visitor));
    if (options_.layer_done) options_.layer_done(i, fit_seconds_);
  }
  return head ? see_head(visitor) : Result<void>();
}

}  // namespace octavo
