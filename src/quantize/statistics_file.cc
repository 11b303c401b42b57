#include "quantize/statistics_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "quantize/npz.h"

namespace octavo {
namespace {

constexpr std::string_view kHistogram = "/histogram", kFirstBin = "/first_bin", kDamaged = "/damaged",
                           kChannels = "/channel_amax";

template <class T>
const std::vector<T>* find_array(const NpzFile& file, const std::string& name) {
  const auto found = file.find(name);
  return found == file.end() ? nullptr : std::get_if<std::vector<T>>(&found->second.values);
}

}  // namespace

Result<void> write_statistics(const std::filesystem::path& path, const StatisticsMap& statistics) {
  NpzFile file;
  for (const auto& [place, values] : statistics) {
    const std::vector<uint64_t>& bins = values.histogram().bins();
    const auto filled = [](uint64_t count) { return count > 0; };
    const auto first = std::find_if(bins.begin(), bins.end(), filled);
    const auto last = std::find_if(bins.rbegin(), std::make_reverse_iterator(first), filled).base();
    std::vector<uint64_t> cut(first, last);
    file[place + std::string(kHistogram)] = {{static_cast<int64_t>(cut.size())}, cut};
    file[place + std::string(kFirstBin)] = {{1}, std::vector<uint64_t>{static_cast<uint64_t>(first - bins.begin())}};
    file[place + std::string(kDamaged)] = {
        {2}, std::vector<uint64_t>{values.histogram().nans(), values.histogram().infinities()}};
    file[place + std::string(kChannels)] = {{values.channels()}, values.channel_amax()};
  }
  return write_npz(path, file);
}

Result<StatisticsMap> read_statistics(const std::filesystem::path& path) {
  OCTAVO_ASSIGN(const NpzFile file, read_npz(path));
  StatisticsMap statistics;
  for (const auto& [name, array] : file) {
    if (!name.ends_with(kChannels)) continue;
    const std::string place = name.substr(0, name.size() - kChannels.size());
    const auto* channels = find_array<float>(file, name);
    const auto* bins = find_array<uint64_t>(file, place + std::string(kHistogram));
    const auto* first = find_array<uint64_t>(file, place + std::string(kFirstBin));
    const auto* damaged = find_array<uint64_t>(file, place + std::string(kDamaged));
    const bool whole = channels != nullptr && bins != nullptr && first != nullptr && damaged != nullptr &&
                       first->size() == 1 && damaged->size() == 2 && (*first)[0] <= LogHistogram::kBins &&
                       bins->size() <= LogHistogram::kBins - (*first)[0];
    if (!whole)
      return fail(
          {.what = "statistics of a place are incomplete", .where = fmt::format("{}: {}", path.string(), place)});
    ValueStatistics values(static_cast<int64_t>(channels->size()));
    values.restore({(*first)[0], *bins, (*damaged)[0], (*damaged)[1]}, *channels);
    statistics.emplace(place, std::move(values));
  }
  // Four arrays to a place: another number means that some lost their place.
  if (statistics.empty() || file.size() != 4 * statistics.size())
    return fail({.what = "statistics file is incomplete",
                 .where = path.string(),
                 .found = fmt::format("{} arrays, {} places", file.size(), statistics.size()),
                 .expected = "four arrays for each place"});
  return statistics;
}

namespace {

Json source_json(const ReportSource& source) {
  const CalibrationSet& set = *source.samples;
  Json files = Json::array(), coverage = Json::array();
  for (const CalibrationSet::File& file : set.files)
    files.push_back({{"path", file.path},
                     {"weight", file.weight},
                     {"documents", file.documents},
                     {"documents_used", file.documents_used},
                     {"samples", file.samples},
                     {"tokens", file.tokens_used}});
  for (const CalibrationSet::Coverage& band : set.coverage())
    coverage.push_back({{"begin", band.begin}, {"end", band.end}, {"tokens", band.tokens}});
  Json json = {{"seed", source.seed},    {"samples", set.samples.size()}, {"length", source.length},
               {"tokens", set.tokens()}, {"files", std::move(files)},     {"coverage", std::move(coverage)}};
  for (size_t layer = 0; layer < source.expert_tokens.size(); ++layer)
    if (!source.expert_tokens[layer].empty())
      json["experts"].push_back({{"layer", layer}, {"tokens", source.expert_tokens[layer]}});
  return json;
}

}  // namespace

std::string statistics_report(const StatisticsMap& statistics, const std::map<std::string, TensorFormat>& formats,
                              const EstimatorOptions& options, const ReportSource& source) {
  Json report = {{"estimator", estimator_text(options)}};
  if (!source.transforms.empty()) report["transforms"] = source.transforms;
  if (source.samples != nullptr) report["calibration"] = source_json(source);
  if (!source.notes.empty()) report["notes"] = source.notes;
  Json& places = report["places"] = Json::object();
  for (const auto& [place, values] : statistics) {
    const LogHistogram& histogram = values.histogram();
    const auto known = formats.find(place);
    const TensorFormat format = known == formats.end() ? tensor_wide_format(ElementType::kE4m3) : known->second;
    const ScaleEstimate estimate = estimate_scale(histogram, values.amax(), format, options);
    places[place] = {{"values", histogram.finite()},
                     {"channels", values.channels()},
                     {"amax", values.amax()},
                     {"p99", histogram.quantile(0.99)},
                     {"p99.9", histogram.quantile(0.999)},
                     {"p99.99", histogram.quantile(0.9999)},
                     {"nan", histogram.nans()},
                     {"infinite", histogram.infinities()},
                     {"element", element_name(format.element)},
                     {"scale", estimate.scale},
                     {"error", estimate.error},
                     {"amax_error", estimate.amax_error},
                     {"saturated", estimate.saturated},
                     {"underflowed", estimate.underflowed}};
  }
  return report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace octavo
