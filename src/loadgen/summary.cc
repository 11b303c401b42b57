#include "loadgen/summary.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

namespace octavo {
namespace {

size_t most_at_once(std::span<const RequestRecord> records) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestRecord& record : records) {
    changes.emplace_back(record.due, 1);
    changes.emplace_back(std::max(record.last, record.due), -1);
  }
  std::sort(changes.begin(), changes.end());  // at the same time: ends first
  int64_t now = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return static_cast<size_t>(most);
}

std::vector<std::pair<std::string, size_t>> count_failures(std::span<const RequestRecord> records) {
  std::map<std::string, size_t> counts;
  for (const RequestRecord& record : records)
    if (!record.completed()) ++counts[record.error];
  std::vector<std::pair<std::string, size_t>> failures(counts.begin(), counts.end());
  std::stable_sort(failures.begin(), failures.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return failures;
}

}  // namespace

bool Slo::met_by(const RequestRecord& record) const {
  return record.completed() && !(ttft && record.ttft() > *ttft) && !(tpot && record.tpot() > *tpot) &&
         !(e2e && record.e2e() > *e2e);
}

Result<Slo> parse_slo(std::string_view text, std::string_view flag) {
  Slo slo;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(", "), text.size());
    const std::string item(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (item.empty()) continue;
    const size_t colon = std::min(item.find(':'), item.size());
    const std::string name = item.substr(0, colon), number = item.substr(std::min(colon + 1, item.size()));
    char* parsed = nullptr;
    const double milliseconds = std::strtod(number.c_str(), &parsed);
    std::optional<double>* limit = name == "ttft"                    ? &slo.ttft
                                   : name == "tpot"                  ? &slo.tpot
                                   : name == "e2e" || name == "e2el" ? &slo.e2e
                                                                     : nullptr;
    if (limit == nullptr || *limit || number.empty() || *parsed != '\0' || !std::isfinite(milliseconds) ||
        milliseconds <= 0)
      return fail({.what = "not a service level objective",
                   .where = std::string(flag),
                   .found = item,
                   .expected = "milliseconds for ttft, tpot or e2e, each once, as in ttft:500,tpot:50,e2e:10000"});
    *limit = milliseconds / 1000;
  }
  return slo;
}

LoadSummary summarize_load(std::span<const RequestRecord> records, const Slo& slo) {
  LoadSummary out;
  std::vector<Observation> ttft, tpot, itl, e2e;
  for (size_t i = 0; i < records.size(); ++i) {
    const RequestRecord& record = records[i];
    out.duration = std::max(out.duration, record.last);
    if (!record.completed()) {
      ++out.failed;
      continue;
    }
    const auto request = static_cast<uint32_t>(i);
    ++out.completed;
    out.good += slo.met_by(record) ? 1 : 0;
    out.input_tokens += record.prompt_tokens;
    out.output_tokens += record.output_tokens;
    out.counted_by_server = out.counted_by_server && record.counted_by_server;
    ttft.push_back({record.ttft(), request});
    e2e.push_back({record.e2e(), request});
    if (record.output_tokens > 1) tpot.push_back({record.tpot(), request});
    for (const double gap : record.gaps) itl.push_back({gap, request});
  }
  out.max_concurrent = most_at_once(records);
  out.failures = count_failures(records);
  if (out.duration > 0) {
    out.request_throughput = static_cast<double>(out.completed) / out.duration;
    out.output_throughput = static_cast<double>(out.output_tokens) / out.duration;
    out.total_throughput = static_cast<double>(out.input_tokens + out.output_tokens) / out.duration;
    out.request_goodput = static_cast<double>(out.good) / out.duration;
  }
  out.ttft = summarize(std::move(ttft));
  out.tpot = summarize(std::move(tpot));
  out.itl = summarize(std::move(itl));
  out.e2e = summarize(std::move(e2e));
  return out;
}

}  // namespace octavo
