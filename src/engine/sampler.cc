#include "engine/sampler.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <random>

#include "base/random.h"
#include "engine/exponentials.h"

namespace octavo {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

// The n-th draw of a seed, in [0, 1), without the draws before it. The seed is mixed once before it counts: seeds that
// are close must not walk the same sequence.
double uniform_at(uint64_t seed, int64_t n) {
  return Random(Random(seed).next() + kGolden * static_cast<uint64_t>(n)).uniform();
}

using Candidate = std::pair<float, TokenId>;

// Appends the weights above `bound`, in order of id, and returns their sum. Most runs of a vocabulary hold none.
double gather_above(std::span<const float> weights, float bound, std::vector<Candidate>& kept) {
  constexpr size_t kLanes = 32;
  double sum = 0;
  for (size_t begin = 0; begin < weights.size(); begin += kLanes) {
    const auto run = weights.subspan(begin, std::min(kLanes, weights.size() - begin));
    int hits = 0;
    for (const float weight : run) hits += weight > bound;
    if (hits == 0) continue;
    for (size_t i = 0; i < run.size(); ++i) {
      if (!(run[i] > bound)) continue;
      kept.emplace_back(run[i], static_cast<TokenId>(begin + i));
      sum += run[i];
    }
  }
  return sum;
}

void sort_by_likelihood(std::vector<Candidate>& candidates) {
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
}

// Index of the weight under which `target` (of the running sum in order of index) falls. Sums go by runs of 256, as the
// total was made. One weight at least is positive.
size_t find_in_sum(std::span<const float> weights, double target) {
  size_t begin = 0;
  for (; begin + 256 < weights.size(); begin += 256) {
    const double run = sum_of(weights.subspan(begin, 256));
    if (target < run) break;
    target -= run;
  }
  for (size_t i = begin; i < weights.size(); ++i)
    if (weights[i] > 0 && (target -= weights[i]) < 0) return i;
  size_t last = weights.size() - 1;  // rounding left a rest
  while (!(weights[last] > 0)) --last;
  return last;
}

}  // namespace

uint64_t fresh_seed() {
  static std::atomic<uint64_t> calls{0};
  static const uint64_t start = (uint64_t{std::random_device{}()} << 32) ^
                                static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  return Random(start + kGolden * calls.fetch_add(1)).next();
}

uint64_t sample_seed(uint64_t seed, int64_t i) {
  return i == 0 ? seed : Random(seed ^ (kGolden * static_cast<uint64_t>(i))).next();
}

TokenId argmax(std::span<const float> logits) {
  // Lanes make the compiler use vectors; `a > b ? a : b` drops NaN.
  constexpr size_t kLanes = 32;
  float lanes[kLanes];
  std::fill(std::begin(lanes), std::end(lanes), -INFINITY);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) lanes[l] = logits[i + l] > lanes[l] ? logits[i + l] : lanes[l];
  float highest = -INFINITY;
  for (; i < logits.size(); ++i) highest = logits[i] > highest ? logits[i] : highest;
  for (const float lane : lanes) highest = lane > highest ? lane : highest;
  for (i = 0; i + kLanes <= logits.size(); i += kLanes) {
    int hits = 0;
    for (size_t l = 0; l < kLanes; ++l) hits += logits[i + l] == highest;
    if (hits > 0) break;
  }
  for (; i < logits.size(); ++i)
    if (logits[i] == highest) return static_cast<TokenId>(i);
  return 0;
}

Sampler::Sampler(const SamplingParams& params, int64_t limit, std::span<const TokenId> prompt)
    : params_(params), seed_(params.seed.value_or(0)), limit_(limit) {
  if (!params.seed && !greedy()) seed_ = fresh_seed();
  if (params_.repetition_penalty != 1.0f)
    for (const TokenId id : prompt)
      if (id < limit) counts_[id].prompt = true;
}

bool Sampler::has_penalties() const {
  return params_.repetition_penalty != 1.0f || params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f;
}

void Sampler::count(TokenId id) {
  if (has_penalties()) ++counts_[id].answer;
}

void Sampler::edit(std::span<float> logits, std::span<const TokenId> banned, const std::vector<bool>* allowed) const {
  for (const auto& [id, bias] : params_.logit_bias)
    if (static_cast<size_t>(id) < logits.size()) logits[static_cast<size_t>(id)] += bias;
  if (has_penalties())
    for (const auto& [id, counts] : counts_) {
      float& logit = logits[static_cast<size_t>(id)];
      if (counts.prompt || counts.answer > 0)
        logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
      logit -= params_.frequency_penalty * static_cast<float>(counts.answer);
      if (counts.answer > 0) logit -= params_.presence_penalty;
    }
  for (const TokenId id : banned)
    if (id >= 0 && static_cast<size_t>(id) < logits.size()) logits[static_cast<size_t>(id)] = -INFINITY;
  if (allowed == nullptr) return;
  for (size_t i = 0; i < logits.size(); ++i)
    if (!(*allowed)[i]) logits[i] = -INFINITY;
}

std::optional<TokenId> Sampler::choose(std::span<const float> logits, int64_t generated,
                                       std::span<const TokenId> banned, const std::vector<bool>* allowed,
                                       SamplerScratch& scratch) const {
  logits = logits.first(std::min(logits.size(), static_cast<size_t>(limit_)));
  if (!params_.logit_bias.empty() || has_penalties() || !banned.empty() || allowed != nullptr) {
    scratch.logits.assign(logits.begin(), logits.end());
    edit(scratch.logits, banned, allowed);
    logits = scratch.logits;
  }
  const TokenId best = argmax(logits);
  const float highest = logits[static_cast<size_t>(best)];
  if (!std::isfinite(highest)) return std::nullopt;
  if (greedy() || params_.top_k == 1) return best;
  return draw(logits, highest, generated, scratch);
}

TokenId Sampler::draw(std::span<const float> logits, float highest, int64_t generated, SamplerScratch& scratch) const {
  std::vector<float>& weights = scratch.weights;  // relative to the most likely token, whose weight is 1
  weights.resize(logits.size());
  exponentials(logits, highest, 1.0f / params_.temperature, weights);
  if (params_.min_p > 0)
    for (float& weight : weights) weight = weight >= params_.min_p ? weight : 0.0f;
  double total = sum_of(weights);
  const double random = uniform_at(seed_, generated);
  const bool top_k = params_.top_k > 0 && static_cast<size_t>(params_.top_k) < weights.size();
  if (!top_k && params_.top_p >= 1.0f) return static_cast<TokenId>(find_in_sum(weights, random * total));

  // The likeliest candidates, as many as the filters can ask for: those above a bound that sinks until there are
  // enough. What is kept does not depend on where it stopped.
  std::vector<Candidate>& kept = scratch.candidates;
  for (float bound = 0x1p-8f;; bound = bound < 0x1p-100f ? 0.0f : bound * 0x1p-8f) {
    kept.clear();
    const double sum = gather_above(weights, bound, kept);
    const bool enough =
        top_k ? kept.size() >= static_cast<size_t>(params_.top_k) : sum > params_.top_p * total * (1 + 1e-9);
    if (enough || bound == 0.0f) break;
  }
  sort_by_likelihood(kept);
  if (top_k) {
    kept.resize(std::min(kept.size(), static_cast<size_t>(params_.top_k)));
    total = 0;
    for (const Candidate& candidate : kept) total += candidate.first;
  }
  double sum = 0;
  size_t count = 0;
  while (count < kept.size() && (count == 0 || sum < params_.top_p * total)) sum += kept[count++].first;
  double target = random * sum;
  for (size_t i = 0; i < count; ++i)
    if ((target -= kept[i].first) < 0) return kept[i].second;
  return kept[count - 1].second;
}

}  // namespace octavo
