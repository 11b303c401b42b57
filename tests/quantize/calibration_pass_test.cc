// The layer-by-layer pass sees what the whole decoder computes, bit for bit.
#include "quantize/calibration_pass.h"

#include <numeric>

#include "base/random.h"
#include "model_folder.h"
#include "models/decoder.h"

namespace octavo {
namespace {

// Goes on with the checkpoint's own weights, keeps the inputs of q, k, v and of the head, and counts all others.
class Recorder final : public PassVisitor {
 public:
  explicit Recorder(bool watches, int64_t bytes_seen = 0) : watches_(watches), bytes_seen_(bytes_seen) {}
  bool watches(int layer) const override { return watches_ || layer < 0; }
  int64_t bytes_seen(const LinearPlace&) const override { return bytes_seen_; }
  Result<void> see_experts(int layer, std::span<const int64_t> tokens) override {
    experts[layer].assign(tokens.begin(), tokens.end());
    return {};
  }
  Result<void> see(const LinearPlace& place, int64_t sample, const Activation& rows) override {
    counted[place] += rows.rows;
    if (place.input == LinearInput::kQkv || place.input == LinearInput::kHead) {
      std::vector<float>& out = seen[{place.layer, sample}];
      for (int64_t r = 0; r < rows.rows; ++r)
        for (int64_t c = 0; c < rows.cols; ++c)
          out.push_back(load_element(rows.format.element, rows.row(r), static_cast<size_t>(c)));
    }
    return {};
  }
  Result<void> see_kv(int, int64_t, int64_t, const float*, const float*, int64_t) override { return {}; }
  Result<LinearGroup> group(const LinearPlace& place, const LayerLoader& loader) override {
    return loader.group(place);
  }
  std::map<std::pair<int, int64_t>, std::vector<float>> seen;
  std::map<LinearPlace, int64_t> counted;
  std::map<int, std::vector<int64_t>> experts;

 private:
  bool watches_;
  int64_t bytes_seen_;
};

CalibrationSet random_samples() {
  Random random(4);
  CalibrationSet set;
  for (const size_t size : {70u, 33u, 5u}) {
    set.samples.emplace_back(size);
    for (TokenId& token : set.samples.back()) token = static_cast<TokenId>(random.below(96));
  }
  return set;
}

// The same rows from the decoder: each layer's input through the layer's norm, and the final norm.
std::map<std::pair<int, int64_t>, std::vector<float>> expected(const Checkpoint& checkpoint, const PrecisionPlan& plan,
                                                               const CalibrationSet& set, ThreadPool& pool) {
  auto decoder = Decoder::load(checkpoint, plan, best_isa(), pool);
  EXPECT_TRUE(decoder.has_value());
  const ModelConfig& c = checkpoint.config();
  std::map<std::pair<int, int64_t>, std::vector<float>> result;
  for (size_t s = 0; s < set.samples.size(); ++s) {
    const auto rows = static_cast<int64_t>(set.samples[s].size()), pages = (rows + kPageTokens - 1) / kPageTokens;
    std::vector<int32_t> table(static_cast<size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    std::vector<AlignedBytes> memory;
    std::vector<PagedKvLayer> kv;
    for (const KvPlan& layer : plan.kv) {
      PagedKvLayer pages_of{.k_format = layer.k,
                            .v_format = layer.v,
                            .layout = {layer.k.element, layer.v.element, static_cast<int>(c.head_dim)}};
      pages_of.num_kv_heads = static_cast<int>(c.num_kv_heads);
      pages_of.pages_per_extent = static_cast<int>(pages);
      pages_of.head_stride = pages_of.layout.page_bytes() * static_cast<size_t>(pages);
      pages_of.extent_stride = pages_of.head_stride * static_cast<size_t>(c.num_kv_heads);
      memory.emplace_back(pages_of.extent_stride);
      pages_of.base = memory.back().data();
      kv.push_back(pages_of);
    }
    const KvSequence sequence{.row_begin = 0, .num_rows = rows, .position = 0, .page_table = table.data()};
    decoder->forward(
        {set.samples[s], {&sequence, 1}, {}}, kv, nullptr, 0, pool, [&](int64_t i, const float* x, int64_t stride) {
          const bool last = i == c.num_layers;
          std::vector<float>& out = result[{last ? -1 : static_cast<int>(i), static_cast<int64_t>(s)}];
          if (last) {
            out.assign(x, x + rows * c.hidden_size);
            return;
          }
          out.resize(static_cast<size_t>(rows * c.hidden_size));
          const Activation normed{.format = plain_format(ElementType::kF32),
                                  .rows = rows,
                                  .cols = c.hidden_size,
                                  .codes = reinterpret_cast<std::byte*>(out.data()),
                                  .code_stride = c.hidden_size * 4};
          decoder->producers().rms_norm(
              {x, stride, decoder->layers()[static_cast<size_t>(i)].input_norm.data(), c.rms_norm_eps, normed}, pool);
        });
  }
  return result;
}

class EveryPlan : public testing::TestWithParam<std::string> {};

void expect_seen_as_computed(std::string_view model, const std::string& scheme) {
  TestFolder folder;
  write_model(folder / "model", model);
  const Checkpoint checkpoint = open_model(folder / "model");
  // The head is lowered, so that the pass comes to its input as well.
  const auto plan = make_plan(checkpoint.config(), {.scheme = scheme, .overrides = {{"lm_head", scheme}}});
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  ThreadPool pool(2);
  const CalibrationSet set = random_samples();
  const auto wanted = expected(checkpoint, *plan, set, pool);
  struct Way {
    bool watches;
    int64_t memory_limit, bytes_seen;
  };
  // Step by step or run through; in memory or spilled; experts all at once, five at a time, or one by one.
  constexpr int64_t kMuch = int64_t{1} << 30;
  for (const Way& way : {Way{true, kMuch, 0}, Way{true, 0, 0}, Way{false, kMuch, 0}, Way{true, kMuch, kMuch / 20},
                         Way{true, 0, kMuch}}) {
    PassOptions options;
    options.isa = best_isa();
    options.memory_limit = way.memory_limit;
    options.spill_folder = folder.path();
    Recorder recorder(way.watches, way.bytes_seen);
    double last = 0, total = 0;
    options.progress = [&](double done, double all, std::string_view) { last = done, total = all; };
    CalibrationPass pass(checkpoint, *plan, set, options, pool);
    const auto done = pass.run(recorder);
    ASSERT_TRUE(done.has_value()) << done.error().message();
    EXPECT_EQ(last, total);
    for (const auto& [key, rows] : wanted) {
      if (!way.watches && key.first >= 0) continue;
      ASSERT_EQ(recorder.seen[key], rows) << "layer " << key.first << ", sample " << key.second;
    }
  }
}

TEST_P(EveryPlan, SeesWhatTheDecoderComputes) {
  expect_seen_as_computed(kOddModel, GetParam());
}

TEST_P(EveryPlan, SeesWhatADecoderWithExpertsComputes) {
  expect_seen_as_computed(kExpertModel, GetParam());
}

// Each expert sees the tokens that the router sends it, at gate and up as at down; without any it sees them all.
TEST(CalibrationPass, ExpertsSeeTheirTokens) {
  TestFolder folder;
  write_model(folder / "model", kExpertModel, ElementType::kBf16,
              [](const std::string& name, std::vector<float>& values, const Shape& shape) {
                // All tokens of the last layer pass experts 3, 4 and 5: their scores are large, and of either sign.
                if (name != "model.layers.2.mlp.gate.weight") return;
                for (int64_t e = 0; e < shape[0]; ++e)
                  for (int64_t c = 0; c < shape[1]; ++c)
                    if (e < 3 || e > 5) values[static_cast<size_t>(e * shape[1] + c)] = 0;
              });
  const Checkpoint checkpoint = open_model(folder / "model");
  const auto plan = make_plan(checkpoint.config(), {.scheme = "fp8"});
  ASSERT_TRUE(plan.has_value());
  ThreadPool pool(2);
  const CalibrationSet set = random_samples();
  for (const int64_t bytes_seen : {int64_t{0}, int64_t{200} << 20}) {
    Recorder recorder(true, bytes_seen);
    PassOptions options;
    options.isa = best_isa();
    options.memory_limit = int64_t{1} << 30;
    CalibrationPass pass(checkpoint, *plan, set, options, pool);
    ASSERT_TRUE(pass.run(recorder).has_value());
    ASSERT_EQ(recorder.experts.size(), 2u);
    for (const int layer : {0, 2}) {
      const std::vector<int64_t>& tokens = recorder.experts[layer];
      ASSERT_EQ(tokens.size(), 24u);
      EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}), 3 * set.tokens());
      int64_t unreached = 0;
      for (int e = 0; e < 24; ++e) {
        const int64_t own = tokens[static_cast<size_t>(e)];
        unreached += own == 0 ? 1 : 0;
        for (const LinearInput input : {LinearInput::kGateUp, LinearInput::kDown})
          EXPECT_EQ((recorder.counted[{layer, input, e}]), own == 0 ? set.tokens() : own) << layer << ", expert " << e;
      }
      EXPECT_EQ((recorder.counted[{layer, LinearInput::kRouter}]), set.tokens());
      if (layer == 2) {
        EXPECT_GE(unreached, 15);
      }
    }
    EXPECT_EQ((recorder.counted[{1, LinearInput::kDown}]), set.tokens());
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, EveryPlan, testing::Values("fp8", "fp8-block", "fp8-tensor", "int8"));

TEST(CalibrationPass, AFolderThatCannotHoldTheActivations) {
  TestFolder folder;
  write_model(folder / "model", kOddModel);
  const Checkpoint checkpoint = open_model(folder / "model");
  const auto plan = make_plan(checkpoint.config().linear_modules(), 2, {.scheme = "fp8"});
  ThreadPool pool(1);
  const CalibrationSet set = random_samples();
  PassOptions options;
  options.isa = best_isa();
  options.spill_folder = folder / "nowhere";
  Recorder recorder(true);
  CalibrationPass pass(checkpoint, *plan, set, options, pool);
  const auto done = pass.run(recorder);
  ASSERT_FALSE(done.has_value());
  EXPECT_NE(done.error().message().find("--memory-limit"), std::string::npos);
}

}  // namespace
}  // namespace octavo
