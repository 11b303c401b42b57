// The part of a calibration pass that runs a mixture of experts.
#include <fmt/format.h>

#include <algorithm>

#include "quantize/calibration_pass.h"

namespace octavo {
namespace {

constexpr int64_t kMostSeen = int64_t{256} << 20;  // bytes that a visitor holds of experts seen at a time

// Runs of places that a visitor has memory for, of at least one place each.
std::vector<std::span<const LinearPlace>> seen_together(std::span<const LinearPlace> places,
                                                        const PassVisitor& visitor) {
  std::vector<std::span<const LinearPlace>> runs;
  for (size_t begin = 0, end = 0; begin < places.size(); begin = end) {
    for (int64_t bytes = 0; end < places.size(); ++end) {
      bytes += visitor.bytes_seen(places[end]);
      if (end > begin && bytes > kMostSeen) break;
    }
    runs.push_back(places.subspan(begin, end - begin));
  }
  return runs;
}

std::vector<LinearPlace> expert_places(const ModelConfig& config, int layer, LinearInput input) {
  std::vector<LinearPlace> places;
  for (int e = 0; e < static_cast<int>(config.experts->count); ++e) places.push_back({layer, input, e});
  return places;
}

}  // namespace

// Two for the attention; then the router, counting, what experts read, what they hold, what down reads, and the sum.
int64_t CalibrationPass::walks(int layer, const PassVisitor& visitor) const {
  constexpr int64_t kDense = 5, kSparse = 6;
  const ModelConfig& c = checkpoint_.config();
  const int64_t fit = visitor.fits(layer) ? 1 : 0;
  if (!c.has_experts(layer)) return kDense + fit;
  int64_t seen = 0;
  for (const LinearInput input : {LinearInput::kGateUp, LinearInput::kDown})
    seen += std::ssize(seen_together(expert_places(c, layer, input), visitor));
  return kSparse + seen + fit;
}

// The router's input, its group, and the tokens that each expert gets by it.
Result<void> CalibrationPass::count_experts(int index, DecoderLayer& layer, PassVisitor& visitor) {
  const std::string what = fmt::format("layer {}", index);
  const LinearPlace place{index, LinearInput::kRouter};
  const Result<void> seen = each_sample(true, what, [&](int64_t s, const LayerRows& r) -> Result<void> {
    OCTAVO_TRY(add_attention(index, layer, s, r));
    const Activation in = seen_.resize(plain_format(held_element(place)), r.rows, checkpoint_.config().hidden_size);
    runner_.norm(layer.post_norm, r.x, in, pool_);
    return visitor.see(place, s, in);
  });
  if (!seen) return seen;
  OCTAVO_ASSIGN(layer.router, visitor.group(place, loader_));
  expert_tokens_.assign(layer.experts.size(), 0);
  const Result<void> counted = each_sample(false, what, [&](int64_t, const LayerRows& r) -> Result<void> {
    runner_.route(layer, r, pool_);
    for (size_t e = 0; e < expert_tokens_.size(); ++e)
      expert_tokens_[e] += std::ssize(runner_.routing().rows_of(static_cast<int64_t>(e)));
    return {};
  });
  if (!counted) return counted;
  end_phase();
  return visitor.see_experts(index, expert_tokens_);
}

// What gate and up of these experts read.
Result<void> CalibrationPass::see_experts_in(int index, const DecoderLayer& layer, std::span<const LinearPlace> places,
                                             PassVisitor& visitor) {
  const int64_t hidden = checkpoint_.config().hidden_size;
  return each_sample(false, fmt::format("layer {}", index), [&](int64_t s, const LayerRows& r) -> Result<void> {
    runner_.route(layer, r, pool_);
    for (const LinearPlace& place : places) {
      const bool all = expert_tokens_[static_cast<size_t>(place.expert)] == 0;
      const int64_t rows = all ? r.rows : std::ssize(runner_.routing().rows_of(place.expert));
      if (rows == 0) continue;
      const Activation in = seen_.resize(plain_format(held_element(place)), rows, hidden);
      if (all)
        runner_.norm(layer.post_norm, r.x, in, pool_);
      else
        runner_.expert_rows(place.expert, in, pool_);
      OCTAVO_TRY(visitor.see(place, s, in));
    }
    return {};
  });
}

Activation CalibrationPass::held_expert(const LinearPlace& place, std::byte*& slab) const {
  const Activation held = held_rows(place, std::ssize(runner_.routing().rows_of(place.expert)), slab);
  slab += held.rows * held.code_stride;
  return held;
}

// What down reads, of all experts that a sample's tokens pass, one behind the other.
Result<void> CalibrationPass::hold_experts(int index, const DecoderLayer& layer, std::span<const LinearPlace> places) {
  return each_sample(false, fmt::format("layer {}", index), [&](int64_t s, const LayerRows& r) -> Result<void> {
    runner_.route(layer, r, pool_);
    std::byte* slab = held_.overwrite(s);
    for (const LinearPlace& place : places) {
      const Activation held = held_expert(place, slab);
      if (held.rows == 0) continue;
      runner_.project_gate_up(
          layer.experts[static_cast<size_t>(place.expert)].gate_up, held.rows,
          [&](const Activation& out) { runner_.expert_rows(place.expert, out, pool_); }, pool_);
      runner_.silu_gate(held, pool_);
    }
    return held_.save(s);
  });
}

// What down of these experts reads, of `all`.
Result<void> CalibrationPass::see_experts_between(int index, const DecoderLayer& layer,
                                                  std::span<const LinearPlace> all, std::span<const LinearPlace> places,
                                                  PassVisitor& visitor) {
  const int64_t cols = checkpoint_.config().experts->intermediate_size;
  return each_sample(false, fmt::format("layer {}", index), [&](int64_t s, const LayerRows& r) -> Result<void> {
    runner_.route(layer, r, pool_);
    OCTAVO_ASSIGN(std::byte * slab, held_.open(s));
    for (const LinearPlace& place : all) {
      const Activation held = held_expert(place, slab);
      const bool wanted = place.expert >= places.front().expert && place.expert <= places.back().expert;
      if (wanted && held.rows > 0) OCTAVO_TRY(visitor.see(place, s, held));
      if (!wanted || expert_tokens_[static_cast<size_t>(place.expert)] > 0) continue;
      runner_.project_gate_up(
          layer.experts[static_cast<size_t>(place.expert)].gate_up, r.rows,
          [&](const Activation& out) { runner_.norm(layer.post_norm, r.x, out, pool_); }, pool_);
      const Activation in = seen_.resize(plain_format(held_element(place)), r.rows, cols);
      runner_.silu_gate(in, pool_);
      OCTAVO_TRY(visitor.see(place, s, in));
    }
    return {};
  });
}

Result<void> CalibrationPass::add_experts(int index, const DecoderLayer& layer, std::span<const LinearPlace> places) {
  return each_sample(true, fmt::format("layer {}", index), [&](int64_t s, const LayerRows& r) -> Result<void> {
    runner_.route(layer, r, pool_);
    OCTAVO_ASSIGN(std::byte * slab, held_.open(s));
    for (const LinearPlace& place : places) {
      const Activation held = held_expert(place, slab);
      if (held.rows == 0) continue;
      runner_.add_expert(
          layer.experts[static_cast<size_t>(place.expert)].down, place.expert,
          [&](const Activation& out) { hand_on(held, out); }, pool_);
    }
    runner_.add_experts(r, pool_);
    return {};
  });
}

Result<void> CalibrationPass::experts_steps(int index, DecoderLayer& layer, PassVisitor& visitor) {
  const ModelConfig& c = checkpoint_.config();
  OCTAVO_TRY(count_experts(index, layer, visitor));
  const std::vector<LinearPlace> in = expert_places(c, index, LinearInput::kGateUp),
                                 between = expert_places(c, index, LinearInput::kDown);
  for (const std::span<const LinearPlace> places : seen_together(in, visitor)) {
    OCTAVO_TRY(see_experts_in(index, layer, places, visitor));
    for (const LinearPlace& place : places) {
      OCTAVO_ASSIGN(layer.group(place), visitor.group(place, loader_));
    }
    end_phase();
  }
  OCTAVO_TRY(make_held(c.experts->per_token * widest_row(between)));
  OCTAVO_TRY(hold_experts(index, layer, between));
  for (const std::span<const LinearPlace> places : seen_together(between, visitor)) {
    OCTAVO_TRY(see_experts_between(index, layer, between, places, visitor));
    for (const LinearPlace& place : places) {
      OCTAVO_ASSIGN(layer.group(place), visitor.group(place, loader_));
    }
    end_phase();
  }
  OCTAVO_TRY(add_experts(index, layer, between));
  end_phase();
  return {};
}

}  // namespace octavo
