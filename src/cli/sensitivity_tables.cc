#include "cli/sensitivity_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/terminal.h"

namespace octavo {
namespace {

constexpr std::string_view kSigns[] = {"·", "▲", "█"};
constexpr std::string_view kColours[] = {"\033[32m", "\033[33m", "\033[31m"};
constexpr size_t kCellWidth = 6;
constexpr size_t kCostliest = 8;

struct Column {
  std::string_view role, title;
  std::string scheme;
};

std::vector<Column> columns_of(const std::vector<std::string>& schemes, const std::vector<std::string>& kv, size_t i) {
  std::vector<Column> columns;
  constexpr std::pair<std::string_view, std::string_view> kLinear[] = {
      {"q_proj", "q"},       {"k_proj", "k"},   {"v_proj", "v"},      {"o_proj", "o"},
      {"gate_proj", "gate"}, {"up_proj", "up"}, {"down_proj", "down"}};
  if (i < schemes.size())
    for (const auto& [role, title] : kLinear) columns.push_back({role, title, schemes[i]});
  if (i < kv.size()) {
    columns.push_back({kKeyCache, "KV-K", kv[i]});
    columns.push_back({kValueCache, "KV-V", kv[i]});
  }
  return columns;
}

// Six columns: a sign, and per cent to three or four digits.
std::string cell(const SensitivityEntry& entry, bool colour) {
  const double percent = 100 * entry.loss();
  const std::string number = percent < 10    ? fmt::format("{:.3f}", percent)
                             : percent < 100 ? fmt::format("{:.2f}", percent)
                             : percent < 1e5 ? fmt::format("{:.0f}", percent)
                                             : ">1e5";
  const auto kind = static_cast<size_t>(entry.verdict());
  const std::string text = fmt::format("{}{:>{}}", kSigns[kind], number, kCellWidth - 1);
  return colour ? fmt::format("{}{}\033[0m", kColours[kind], text) : text;
}

std::string entry_name(const SensitivityEntry& e) {
  return e.layer < 0 ? e.role : fmt::format("layer {} {}", e.layer, e.role);
}

}  // namespace

std::string sensitivity_table(const Sensitivity& s, bool colour) {
  const std::vector<std::string> schemes = measured_schemes(s, false), kv = measured_schemes(s, true);
  std::map<std::string, const SensitivityEntry*> by_key;
  const auto key = [](int layer, std::string_view role, std::string_view scheme) {
    return fmt::format("{} {} {}", layer, role, scheme);
  };
  for (const SensitivityEntry& e : s.entries) by_key[key(e.layer, e.role, e.scheme)] = &e;
  std::string out;
  for (size_t i = 0; i < std::max(schemes.size(), kv.size()); ++i) {
    const std::vector<Column> columns = columns_of(schemes, kv, i);
    out += fmt::format("{}{}\nlayer", i < schemes.size() ? schemes[i] : "",
                       i < kv.size() ? fmt::format("{}KV cache {}", i < schemes.size() ? ", " : "", kv[i]) : "");
    for (const Column& column : columns) out += fmt::format("  {:>{}}", column.title, kCellWidth);
    out += "\n" + std::string(5 + columns.size() * (kCellWidth + 2), '-') + "\n";
    for (int layer = 0; layer < s.model.layers; ++layer) {
      out += fmt::format("{:>5}", layer);
      for (const Column& column : columns) {
        const auto found = by_key.find(key(layer, column.role, column.scheme));
        out += "  " + (found == by_key.end() ? fmt::format("{:>{}}", "", kCellWidth) : cell(*found->second, colour));
      }
      out.erase(out.find_last_not_of(' ') + 1);
      out += "\n";
    }
    const auto head = i < schemes.size() ? by_key.find(key(-1, "lm_head", schemes[i])) : by_key.end();
    if (head != by_key.end()) out += fmt::format(" head  {}\n", cell(*head->second, colour));
    out += "\n";
  }
  return out + fmt::format("loss of perplexity in %: {} free below 0.1, {} watch below 1, {} keep wide\n", kSigns[0],
                           kSigns[1], kSigns[2]);
}

std::string sensitivity_summary(const Sensitivity& s) {
  Table counts({"lowered to", "free", "watch", "keep wide"});
  for (const bool cache : {false, true})
    for (const std::string& scheme : measured_schemes(s, cache)) {
      int n[3] = {};
      for (const SensitivityEntry& e : s.entries)
        if (e.scheme == scheme && e.of_cache() == cache) ++n[static_cast<size_t>(e.verdict())];
      counts.add({(cache ? "KV " : "") + scheme, std::to_string(n[0]), std::to_string(n[1]), std::to_string(n[2])});
    }
  std::vector<const SensitivityEntry*> order;
  for (const SensitivityEntry& e : s.entries) order.push_back(&e);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->loss() > b->loss(); });
  Table worst({"costliest", "to", "perplexity", "mean KL", "output error"});
  worst.align_left(1);
  for (size_t i = 0; i < std::min(kCostliest, order.size()); ++i) {
    const SensitivityEntry& e = *order[i];
    worst.add({entry_name(e), e.scheme,
               fmt::format("{:+.3f} % ± {:.3f}", 100 * e.perplexity_change, 100 * e.perplexity_change_error),
               fmt::format("{:.6f}", e.kl), fmt::format("{:.2e}", e.output_error)});
  }
  return counts.text() + "\n" + worst.text();
}

std::string plan_table(const std::vector<PlanRow>& rows, double read_gb_s) {
  std::vector<std::string> header{"", "bits/w", "bytes"};
  if (read_gb_s > 0) header.emplace_back("TPOT");
  for (const char* title : {"KL", "loss", "of the weights"}) header.emplace_back(title);
  Table table(header);
  table.align_left(header.size() - 1);
  for (const PlanRow& row : rows) {
    const PlanPoint& p = row.point;
    std::vector<std::string> cells{row.label, fmt::format("{:.2f}", p.bits_per_weight),
                                   human_bytes(static_cast<double>(p.bytes))};
    if (read_gb_s > 0) cells.push_back(fmt::format("{:.2f} ms", static_cast<double>(p.bytes) / read_gb_s * 1e-6));
    std::string shares;
    for (const auto& [scheme, share] : p.shares)
      shares += fmt::format("{}{} {:.0f}%", shares.empty() ? "" : " ", scheme, 100 * share);
    cells.push_back(fmt::format("{:.4f}", p.kl));
    cells.push_back(fmt::format("{:.2f} %", 100 * p.loss()));
    cells.push_back(std::move(shares));
    table.add(std::move(cells));
  }
  return table.text();
}

}  // namespace octavo
