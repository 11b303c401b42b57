#include <fmt/format.h>

#include "evaluate/report/figures.h"
#include "evaluate/report/html.h"

namespace octavo {
namespace {

using enum FigureUnit;

// Text in a cell of a Markdown table.
std::string escape_markdown(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '\\' || c == '`' || c == '*' || c == '_' || c == '<' || c == '[') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string figure(const ReportNode& node, FigureUnit unit) {
  return node.is_number() ? plain_figure(node.number(), unit) : "";
}

std::string figure(const ReportNode& node, const ReportNode& error, FigureUnit unit) {
  std::string text = figure(node, unit);
  if (node.is_number() && error.number() > 0) text += " ± " + plain_error(error.number(), node.number(), unit);
  return text;
}

std::string gates(const ReportNode& report) {
  std::string out = "| gate | measured | limit | |\n|---|---:|---:|---|\n";
  for (size_t i = 0; i < report["gates"].size(); ++i) {
    const ReportNode gate = report["gates"][i];
    const FigureUnit unit = unit_of_gate(gate["gate"].text());
    std::string title = gate["title"].text(), status = gate["status"].text();
    if (gate["subject"].exists()) title += " (" + gate["subject"].text() + ")";
    if (gate["status"].is("fails")) status = "**fails**";
    if (gate["status"].is("not computed")) status = "**not computed**: " + escape_markdown(gate["reason"].text());
    std::string limit = figure(gate["limit"], unit == kChange ? kPercent : unit);
    if (!limit.empty()) limit = (gate["side"].is("max") ? "at most " : "at least ") + limit;
    if (!limit.empty() && gate["standard_errors"].is_number())
      limit += fmt::format(", within {} standard error", figure(gate["standard_errors"], kNumber));
    out += fmt::format("| {} | {} | {} | {} |\n", escape_markdown(title),
                       figure(gate["value"], gate["standard_error"], unit), limit, status);
  }
  return out;
}

std::string ladder(const ReportNode& rungs) {
  std::string out =
      "| | weights | KV per token | TTFT | TPOT | prefill | decode | throughput | perplexity | change |\n"
      "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
  for (size_t i = 0; i < rungs.size(); ++i) {
    const ReportNode r = rungs[i];
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", escape_markdown(r["title"].text()),
                       figure(r["weight_bytes"], kBytes), figure(r["kv_bytes_per_token"], kBytes),
                       figure(r["ttft_seconds"], kSeconds), figure(r["tpot_seconds"], kSeconds),
                       figure(r["prefill_tokens_per_second"], kRate), figure(r["decode_tokens_per_second"], kRate),
                       figure(r["throughput_tokens_per_second"], kRate), figure(r["perplexity"], kPerplexity),
                       figure(r["perplexity_change"], r["perplexity_change_standard_error"], kChange));
  }
  return out;
}

std::string tasks(const ReportNode& all) {
  std::string out =
      "\n### Tasks\n\n| task | metric | items | base | candidate | paired difference |\n"
      "|---|---|---:|---:|---:|---:|\n";
  for (size_t t = 0; t < all.size(); ++t)
    for (size_t m = 0; m < all[t]["metrics"].size(); ++m) {
      const ReportNode metric = all[t]["metrics"][m];
      out += fmt::format("| {} | {} | {} | {} | {} | {} |\n", escape_markdown(all[t]["name"].text()),
                         escape_markdown(metric["name"].text()), figure(all[t]["items"], kCount),
                         figure(metric["base"], kScore), figure(metric["candidate"], kScore),
                         figure(metric["difference"], metric["difference_standard_error"], kScore));
    }
  return out;
}

}  // namespace

std::string render_model_card(const Json& json) {
  const ReportNode report(json), plan = report["candidate"]["plan"], verdict = report["verdict"];
  std::string out = fmt::format(
      "## Acceptance\n\n{} ({}) against {} ({}): **{}**, {} of {} gates hold.\n\nWeights {}; activations {}; KV cache "
      "{}.\n\n",
      escape_markdown(report["candidate"]["name"].text()), escape_markdown(plan["scheme"].text()),
      escape_markdown(report["base"]["name"].text()), escape_markdown(report["base"]["plan"]["scheme"].text()),
      verdict["accepted"].is_true() ? "accepted" : "not accepted", figure(verdict["held"], kCount),
      figure(verdict["judged"], kCount), escape_markdown(plan["weights"].text()),
      escape_markdown(plan["activations"].text()), escape_markdown(plan["kv_cache"].text()));
  out += gates(report) + "\n### From the base to the candidate\n\n" + ladder(report["ladder"]);
  if (report["tasks"].size() > 0) out += tasks(report["tasks"]);
  const ReportNode needle = report["needle"];
  if (needle["cells"].is_array())
    out += fmt::format("\n### Long context\n\nOf {} needles the base finds {}, the candidate {}; {} lost.\n",
                       figure(needle["needles"], kCount), figure(needle["base_found"], kCount),
                       figure(needle["candidate_found"], kCount), figure(needle["lost"], kCount));
  const ReportNode s = report["settings"];
  out += fmt::format("\nMeasured with Octavo {} on {} ({}, {} threads), {}.", escape_markdown(report["version"].text()),
                     escape_markdown(report["machine"]["cpu"].text()), escape_markdown(report["machine"]["isa"].text()),
                     figure(report["machine"]["threads"], kCount), report["created"].text());
  if (report["quality"]["tokens_scored"].exists())
    out += fmt::format(" Perplexity and KL over {} tokens of {}.", figure(report["quality"]["tokens_scored"], kCount),
                       escape_markdown(s["text"].text()));
  if (s["repeat"].number() > 0)
    out += fmt::format(
        " Speed: a prompt of {} tokens and {} steps after it, medians of {} rounds; throughput of {} sequences.",
        figure(s["prompt"], kCount), figure(s["generate"], kCount), figure(s["repeat"], kCount),
        figure(s["batch"], kCount));
  return out + "\n";
}

}  // namespace octavo
