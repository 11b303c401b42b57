// Histograms, their files, and the scales that are estimated from them.
#include "quantize/statistics.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/random.h"
#include "model_folder.h"
#include "quantize/estimator.h"
#include "quantize/statistics_file.h"

namespace octavo {
namespace {

std::vector<float> normals(size_t count, uint64_t seed, float outlier = 0) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = random.normal();
  if (outlier != 0) values[count / 2] = outlier;
  return values;
}

ValueStatistics of(const std::vector<float>& values, int64_t channels, int threads = 1) {
  ThreadPool pool(threads);
  ValueStatistics statistics(channels);
  statistics.add(ElementType::kF32, reinterpret_cast<const std::byte*>(values.data()),
                 static_cast<int64_t>(values.size()) / channels, channels * 4, pool);
  return statistics;
}

TEST(Statistics, PartsMergeToTheWhole) {
  const std::vector<float> values = normals(64 * 500, 1);
  const ValueStatistics whole = of(values, 64), threads = of(values, 64, 3);
  EXPECT_EQ(whole, threads);
  ValueStatistics merged = of({values.begin(), values.begin() + 64 * 123}, 64);
  merged.merge(of({values.begin() + 64 * 123, values.end()}, 64));
  EXPECT_EQ(whole, merged);
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  EXPECT_EQ(whole.amax(), amax);
  EXPECT_EQ(whole.histogram().finite(), values.size());
}

TEST(Statistics, QuantilesLieWithinABin) {
  const std::vector<float> values = normals(200'000, 2);
  const LogHistogram histogram = of(values, 100).histogram();
  std::vector<float> sorted;
  for (const float value : values) sorted.push_back(std::fabs(value));
  std::sort(sorted.begin(), sorted.end());
  for (const double q : {0.5, 0.99, 0.999, 0.9999}) {
    const double exact = sorted[static_cast<size_t>(q * static_cast<double>(sorted.size()))];
    EXPECT_NEAR(histogram.quantile(q) / exact, 1.0, 0.03) << q;
    EXPECT_NEAR(histogram.share_above(exact), 1 - q, 0.002);
  }
  EXPECT_EQ(LogHistogram().quantile(0.5), 0.0);
}

TEST(Statistics, DamagedValuesAreCountedApart) {
  std::vector<float> values = normals(320, 3);
  values[5] = NAN;
  values[70] = -INFINITY;
  values[71] = INFINITY;
  const ValueStatistics statistics = of(values, 32);
  EXPECT_TRUE(statistics.damaged());
  EXPECT_EQ(statistics.histogram().nans(), 1u);
  EXPECT_EQ(statistics.histogram().infinities(), 2u);
  EXPECT_EQ(statistics.histogram().finite(), 317u);
  EXPECT_TRUE(std::isfinite(statistics.amax()));
  // The finite ones lie in the bins that their bits say.
  std::vector<uint64_t> bins(LogHistogram::kBins);
  for (const float value : values)
    if (std::isfinite(value)) ++bins[std::bit_cast<uint32_t>(std::fabs(value)) >> LogHistogram::kShift];
  EXPECT_EQ(statistics.histogram().bins(), bins);
}

// A quantile of values that are nearly all zero is no scale.
TEST(Statistics, APercentileOfZerosFallsBackToAmax) {
  std::vector<float> values(64'000);
  values[100] = 3.5f;
  const ValueStatistics statistics = of(values, 64);
  const TensorFormat format = tensor_wide_format(ElementType::kE4m3);
  const auto percentile = parse_estimator("percentile:99.9");
  ASSERT_TRUE(percentile.has_value());
  const ScaleEstimate estimate = estimate_scale(statistics.histogram(), statistics.amax(), format, *percentile);
  EXPECT_TRUE(estimate.fell_back);
  EXPECT_EQ(estimate.scale, scale_from_amax(3.5f, format));
  EXPECT_FALSE(estimate_scale(of(normals(6400, 1), 64).histogram(), 4, format, *percentile).fell_back);
}

TEST(Statistics, FilesAreReadAsWritten) {
  TestFolder folder;
  StatisticsMap map;
  map.emplace("model.layers.0.qkv_input", of(normals(64 * 50, 4), 64));
  map.emplace("model.layers.0.k_cache.1", of(std::vector<float>(32 * 4, 0.0f), 32));
  const auto path = folder / "calibration.npz";
  ASSERT_TRUE(write_statistics(path, map).has_value());
  const auto read = read_statistics(path);
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_EQ(*read, map);
  // Cut or changed anywhere: an error, never a crash or other numbers.
  const std::string bytes = read_text_file(path).value();
  for (size_t at = 0; at < bytes.size(); at += 7) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x41);
    ASSERT_TRUE(write_text_file(path, changed).has_value());
    if (const auto damaged = read_statistics(path)) {
      EXPECT_EQ(*damaged, map) << at;
    }
    ASSERT_TRUE(write_text_file(path, bytes.substr(0, at)).has_value());
    EXPECT_FALSE(read_statistics(path).has_value()) << at;
  }
}

TEST(Estimators, ChooseAsTheyAreNamed) {
  const TensorFormat e4m3 = tensor_wide_format(ElementType::kE4m3), int8 = tensor_wide_format(ElementType::kInt8);
  const ValueStatistics seen = of(normals(200'000, 5, 60.0f), 100);
  const auto estimate = [&](std::string_view text, const TensorFormat& format) {
    return estimate_scale(seen.histogram(), seen.amax(), format, parse_estimator(text).value());
  };
  EXPECT_EQ(estimate("amax", e4m3).scale, scale_from_amax(seen.amax(), e4m3));
  EXPECT_FLOAT_EQ(estimate("margin:0.5", e4m3).scale, 2 * scale_from_amax(seen.amax(), e4m3));
  // One outlier: amax keeps it and wastes INT8's grid; the percentile saturates it. E4M3 loses by clipping.
  EXPECT_NEAR(estimate("percentile:99.9:99.99", int8).scale, 3.26f / 127, 0.1f / 127);
  EXPECT_NEAR(estimate("percentile:99.9:99.99", int8).saturated, 0.0011, 0.0003);
  EXPECT_TRUE(estimate("percentile:99.9:99.99", e4m3).loses_to_amax());
  // The search never loses, and on INT8 it gains.
  EXPECT_FALSE(estimate("mse", e4m3).loses_to_amax());
  EXPECT_LE(estimate("mse", int8).error, estimate("amax", int8).error);
  for (const std::string_view bad :
       {"", "amx", "amax:1", "margin:0", "margin:2", "percentile:0", "percentile:101", "percentile:a"})
    EXPECT_FALSE(parse_estimator(bad).has_value()) << bad;
}

TEST(Estimators, ExpectedErrorIsTheMeasuredOne) {
  const std::vector<float> values = normals(100'000, 6);
  const LogHistogram histogram = of(values, 100).histogram();
  for (const ElementType element : {ElementType::kE4m3, ElementType::kInt8})
    for (const float scale : {0.01f, 0.003f, 0.05f}) {
      double error = 0, total = 0;
      for (const float value : values) {
        std::byte code{};
        store_element(element, &code, 0, value / scale);
        const double difference = static_cast<double>(load_element(element, &code, 0)) * scale - value;
        error += difference * difference;
        total += static_cast<double>(value) * value;
      }
      EXPECT_NEAR(expected_error(histogram, scale, element) / (error / total), 1.0, 0.05);
    }
}

}  // namespace
}  // namespace octavo
