#include "evaluate/sensitivity_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "engine/sequence.h"
#include "kernels/producers.h"

namespace octavo {
namespace {

constexpr int64_t kHeadRows = 128;  // rows of logits held of the base, and of a change
constexpr int kStores = 3;

// Puts a change into a layer while it lives.
class Swapped {
 public:
  Swapped(DecoderLayer& layer, LayerChange& change) : layer_(layer), change_(change) { swap(); }
  ~Swapped() { swap(); }
  Swapped(const Swapped&) = delete;
  Swapped& operator=(const Swapped&) = delete;

 private:
  void swap() {
    if (change_.kv) {  // all but the groups
      std::swap(layer_, change_.frame);
      std::swap(layer_.qkv, change_.frame.qkv);
      std::swap(layer_.o, change_.frame.o);
      std::swap(layer_.gate_up, change_.frame.gate_up);
      std::swap(layer_.down, change_.frame.down);
      std::swap(layer_.router, change_.frame.router);
      std::swap(layer_.experts, change_.frame.experts);
    }
    for (auto& [place, group] : change_.groups) std::swap(layer_.group(place), group);
  }
  DecoderLayer& layer_;
  LayerChange& change_;
};

}  // namespace

SensitivityPass::SensitivityPass(const Checkpoint& checkpoint, const PrecisionPlan& base, const TextWindows& windows,
                                 Options options, ThreadPool& pool)
    : checkpoint_(checkpoint),
      plan_(base),
      windows_(windows),
      options_(std::move(options)),
      pool_(pool),
      config_(checkpoint.config()),
      loader_(checkpoint, base, options_.isa, pool, report_),
      runner_(config_, options_.isa),
      logits_stride_((config_.vocab_size + 15) / 16 * 16) {}

void SensitivityPass::worked(double units) const {
  if (options_.progress) options_.progress(units);
}

double SensitivityPass::cost(int layer) const {
  const int64_t mlp =
      config_.experts ? config_.experts->per_token * config_.experts->intermediate_size : config_.intermediate_size;
  const int64_t layer_size = 2 * config_.hidden_size * config_.q_size() + 2 * config_.hidden_size * config_.kv_size() +
                             3 * config_.hidden_size * mlp;
  const double head = 1.5 * static_cast<double>(config_.hidden_size * config_.vocab_size) /
                      static_cast<double>(layer_size);  // with the comparison
  const auto layers = layer < 0 ? 0.0 : static_cast<double>(config_.num_layers - layer);
  return (layers + head) * static_cast<double>(windows_.count);
}

Result<void> SensitivityPass::prepare() {
  for (int i = 0; i < static_cast<int>(config_.num_layers); ++i) {
    OCTAVO_ASSIGN(DecoderLayer layer, loader_.load(i));
    layers_.push_back(std::move(layer));
  }
  OCTAVO_ASSIGN(final_norm_, loader_.final_norm());
  OCTAVO_ASSIGN(head_, loader_.group({}));
  const int64_t slab = windows_.context * config_.hidden_size * static_cast<int64_t>(sizeof(float));
  for (SampleStore* store : {&entry_, &output_, &final_}) {
    OCTAVO_ASSIGN(*store,
                  SampleStore::create(windows_.count, slab, options_.memory_limit / kStores, options_.spill_folder));
  }
  base_logits_ = AlignedArray<float>(static_cast<size_t>(kHeadRows * logits_stride_));
  logits_ = AlignedArray<float>(static_cast<size_t>(kHeadRows * logits_stride_));
  return first_pass();
}

// Embeddings into entry_, what the last layer gives into final_, and the base's perplexity.
Result<void> SensitivityPass::first_pass() {
  OCTAVO_ASSIGN(const Embedding embedding, load_embedding(checkpoint_, plan_, report_));
  const int64_t hidden = config_.hidden_size;
  std::vector<double> means;
  for (int64_t w = 0; w < windows_.count; ++w) {
    float* const entry = reinterpret_cast<float*>(entry_.overwrite(w));
    embed(embedding.view, windows_.window(w), entry, hidden);
    float* const x = reinterpret_cast<float*>(final_.overwrite(w));
    std::copy_n(entry, windows_.context * hidden, x);
    OCTAVO_TRY(entry_.save(w));
    for (size_t i = 0; i < layers_.size(); ++i) run_layer(layers_[i], plan_.kv[i], x);
    OCTAVO_TRY(final_.save(w));
    OCTAVO_TRY(base_rows(w, x, means));
    worked(cost(0) / static_cast<double>(windows_.count));
  }
  base_perplexity_ = std::exp(mean_error(means).mean);
  return {};
}

// The mean NLL of a window, as perplexity() takes it.
Result<void> SensitivityPass::base_rows(int64_t window, const float* x, std::vector<double>& means) {
  const std::span<const TokenId> tokens = windows_.window(window);
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  std::vector<double> nll(tokens.size() - 1);
  for (int64_t begin = 0; begin < windows_.context; begin += kHeadRows) {
    const int64_t rows = std::min(kHeadRows, windows_.context - begin);
    const float* const base = logits(head_, x + begin * config_.hidden_size, rows, base_logits_);
    pool_.parallel_items(rows, [&](int64_t i, int) {
      const auto next = static_cast<size_t>(begin + i + 1);
      if (next < tokens.size())
        nll[next - 1] = negative_log_likelihood({base + i * logits_stride_, vocab}, tokens[next]);
    });
  }
  double total = 0;
  for (const double value : nll) total += value;
  if (!std::isfinite(total))
    return fail({.what = "the model's logits are not finite",
                 .where = checkpoint_.path().string(),
                 .remedy = "look for NaN or infinite weights and scales with `octavo inspect --tensors`"});
  means.push_back(total / static_cast<double>(nll.size()));
  return {};
}

Result<LayerChange> SensitivityPass::load(const PrecisionPlan& lowered, int layer, std::optional<Role> role) const {
  const LayerLoader loader(checkpoint_, lowered, options_.isa, pool_, report_);
  LayerChange change;
  if (role) {
    for (const LinearPlace& place : layer_places(config_, layer)) {
      if (place.input != input_of(*role)) continue;
      OCTAVO_ASSIGN(LinearGroup group, loader.group(place));
      change.groups.emplace_back(place, std::move(group));
    }
  } else {
    change.kv = lowered.kv[static_cast<size_t>(layer)];
    OCTAVO_ASSIGN(change.frame, loader.frame(layer));
  }
  return change;
}

PagedKvLayer SensitivityPass::fresh_cache(const DecoderLayer& layer, const KvPlan& kv) {
  const int64_t pages = (windows_.context + kPageTokens - 1) / kPageTokens;
  auto cache =
      std::find_if(caches_.begin(), caches_.end(), [&](const Cache& c) { return c.kv.k == kv.k && c.kv.v == kv.v; });
  if (cache == caches_.end()) {
    KvGeometry geometry{.layers = {{kv.k, kv.v}},
                        .num_kv_heads = static_cast<int>(config_.num_kv_heads),
                        .head_dim = static_cast<int>(config_.head_dim)};
    caches_.push_back({kv, std::make_unique<PagePool>(std::move(geometry), static_cast<int32_t>(pages))});
    cache = std::prev(caches_.end());
  }
  page_table_.clear();
  OCTAVO_CHECK(cache->pages->allocate(pages, page_table_), "{} pages", pages);
  cache->pages->release(page_table_);  // nobody else allocates: they stay ours, and are zeroed when asked for again
  PagedKvLayer view = cache->pages->layers()[0];
  view.k_scales = layer.k_scales.empty() ? nullptr : layer.k_scales.data();
  view.v_scales = layer.v_scales.empty() ? nullptr : layer.v_scales.data();
  return view;
}

void SensitivityPass::run_layer(const DecoderLayer& layer, const KvPlan& kv, float* x) {
  const PagedKvLayer cache = fresh_cache(layer, kv);
  for (int64_t begin = 0; begin < windows_.context; begin += kPrefillChunk) {
    const int64_t rows = std::min(kPrefillChunk, windows_.context - begin);
    const KvSequence sequence{.row_begin = 0, .num_rows = rows, .position = begin, .page_table = page_table_.data()};
    const LayerRows at{.x = x + begin * config_.hidden_size, .rows = rows, .sequences = {&sequence, 1}};
    runner_.attention_block(layer, at, cache, pool_);
    runner_.mlp_block(layer, at, pool_);
  }
}

Result<void> SensitivityPass::run_base_layer() {
  const auto at = static_cast<size_t>(layer_);
  for (int64_t w = 0; w < windows_.count; ++w) {
    OCTAVO_ASSIGN(const std::byte* const entry, entry_.open(w));
    std::byte* const output = output_.overwrite(w);
    std::memcpy(output, entry, static_cast<size_t>(windows_.context * config_.hidden_size) * sizeof(float));
    run_layer(layers_[at], plan_.kv[at], reinterpret_cast<float*>(output));
    OCTAVO_TRY(output_.save(w));
    worked(1);
  }
  return {};
}

void SensitivityPass::step() {
  std::swap(entry_, output_);
  ++layer_;
}

void SensitivityPass::run_changed(LayerChange& change) {
  DecoderLayer& layer = layers_[static_cast<size_t>(layer_)];
  const Swapped swapped(layer, change);
  run_layer(layer, change.kv ? *change.kv : plan_.kv[static_cast<size_t>(layer_)], change.x.data());
}

Result<void> SensitivityPass::measure(std::span<LayerChange> changes) {
  const int64_t hidden = config_.hidden_size;
  const auto values = static_cast<size_t>(windows_.context * hidden);
  for (LayerChange& change : changes) change.x = AlignedArray<float>(values);
  for (int64_t w = 0; w < windows_.count; ++w) {
    OCTAVO_ASSIGN(const std::byte* const entry, entry_.open(w));
    OCTAVO_ASSIGN(const std::byte* const output, output_.open(w));
    for (LayerChange& change : changes) {
      std::memcpy(change.x.data(), entry, values * sizeof(float));
      run_changed(change);
      add_output_error(change, change.x.data(), reinterpret_cast<const float*>(output), windows_.context, hidden,
                       hidden);
      worked(1);
    }
    for (auto i = static_cast<size_t>(layer_) + 1; i < layers_.size(); ++i)
      for (LayerChange& change : changes) {
        run_layer(layers_[i], plan_.kv[i], change.x.data());
        worked(1);
      }
    OCTAVO_TRY(compare_window(w, changes));
  }
  return {};
}

Result<void> SensitivityPass::measure_head(std::span<LayerChange> changes) {
  for (int64_t w = 0; w < windows_.count; ++w) OCTAVO_TRY(compare_window(w, changes));
  return {};
}

// Mean squared difference relative to the base's row, summed over the rows in order.
void SensitivityPass::add_output_error(LayerChange& change, const float* lowered, const float* base, int64_t rows,
                                       int64_t cols, int64_t stride) const {
  std::vector<double> errors(static_cast<size_t>(rows));
  pool_.parallel_items(rows, [&](int64_t r, int) {
    double difference = 0, size = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const double b = base[r * stride + c], d = lowered[r * stride + c] - b;
      difference += d * d;
      size += b * b;
    }
    errors[static_cast<size_t>(r)] = size > 0 ? difference / size : 0;
  });
  for (const double error : errors) change.output_error += error;
}

float* SensitivityPass::logits(const LinearGroup& head, const float* x, int64_t rows, AlignedArray<float>& memory) {
  runner_.project(
      head, rows, [&](const Activation& out) { runner_.norm(final_norm_, x, out, pool_); }, memory.data(),
      logits_stride_, pool_);
  return memory.data();
}

// A run of rows of the base's logits once for all changes, each change's beside them.
Result<void> SensitivityPass::compare_window(int64_t window, std::span<LayerChange> changes) {
  const std::span<const TokenId> tokens = windows_.window(window);
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  OCTAVO_ASSIGN(const std::byte* const slab, final_.open(window));
  const float* const final = reinterpret_cast<const float*>(slab);
  for (LayerChange& change : changes) change.rows.assign(tokens.size() - 1, {});
  for (int64_t begin = 0; begin < windows_.context; begin += kHeadRows) {
    const int64_t rows = std::min(kHeadRows, windows_.context - begin), offset = begin * config_.hidden_size;
    const float* const base = logits(head_, final + offset, rows, base_logits_);
    for (LayerChange& change : changes) {
      const bool head = !change.groups.empty() && change.groups[0].first.input == LinearInput::kHead;
      const float* const lowered = head ? logits(change.groups[0].second, final + offset, rows, logits_)
                                        : logits(head_, change.x.data() + offset, rows, logits_);
      pool_.parallel_items(rows, [&](int64_t i, int) {
        const auto at = static_cast<size_t>(begin + i);
        if (at + 1 >= tokens.size()) return;
        change.rows[at] =
            compare_rows({base + i * logits_stride_, vocab}, {lowered + i * logits_stride_, vocab}, tokens[at + 1]);
      });
      if (head) add_output_error(change, lowered, base, rows, config_.vocab_size, logits_stride_);
    }
  }
  for (LayerChange& change : changes) {
    worked(cost(-1) / static_cast<double>(windows_.count));
    if (const auto broken = change.totals.add(change.rows))
      return fail({.what = "the logits are not finite with one tensor lowered",
                   .where = fmt::format("{}: {}, token {} of the text", checkpoint_.path().string(), change.name,
                                        window * windows_.context + static_cast<int64_t>(*broken)),
                   .remedy = "leave this scheme out"});
  }
  return {};
}

}  // namespace octavo
