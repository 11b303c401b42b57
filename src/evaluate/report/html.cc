#include "evaluate/report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "evaluate/report/markup.h"
#include "evaluate/report/svg.h"
#include "evaluate/report/template.h"

namespace octavo {
namespace {

using enum FigureUnit;

std::string figure_block(const std::string& plots) {
  return "<div class=\"plots\">" + plots + "</div>";
}

std::string missing(const ReportNode& part, std::string_view otherwise) {
  const std::string why = shown(part["why_not"]);
  return fmt::format("<p class=\"missing\">Not measured: {}.</p>", why.empty() ? escape_html(otherwise) : why);
}

std::string table(const std::string& head, const std::string& body, std::string_view style) {
  return fmt::format(
      "<div class=\"scroll\"><table class=\"{}\"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>", style,
      head, body);
}

std::string heads(std::initializer_list<std::string_view> names) {
  std::string out;
  for (const std::string_view name : names) out += fmt::format("<th scope=\"col\">{}</th>", name);
  return out;
}

std::string cell(const std::string& inner) {
  return "<td>" + inner + "</td>";
}

bool is_failing(const ReportNode& gate) {
  return gate["status"].is("fails") || gate["status"].is("not computed");
}

// "Drop of the task score (arc_easy)"
std::string gate_title(const ReportNode& gate) {
  const std::string subject = shown(gate["subject"]);
  return shown(gate["title"]) + (subject.empty() ? "" : " (" + subject + ")");
}

std::string gate_limit(const ReportNode& gate) {
  const FigureUnit unit = unit_of_gate(gate["gate"].text());
  if (!gate["limit"].is_number()) return shown(gate["reason"]);
  const std::string limit =
      (gate["side"].is("max") ? "at most " : "at least ") + shown(gate["limit"], unit == kChange ? kPercent : unit);
  return gate["standard_errors"].is_number()
             ? limit + fmt::format(", within {} standard error", shown(gate["standard_errors"], kNumber))
             : limit;
}

std::string gate_value(const ReportNode& gate) {
  return shown_with_error(gate["value"], gate["standard_error"], unit_of_gate(gate["gate"].text()));
}

std::string verdict(const ReportNode& report) {
  const ReportNode v = report["verdict"];
  if (v["accepted"].is_true()) {
    std::string text =
        fmt::format("<p class=\"verdict holds\"><b>Accepted</b>: all {} gates hold.", shown(v["judged"], kCount));
    if (v["off"].number() > 0) text += fmt::format(" Switched off: {}.", shown(v["off"], kCount));
    return text + "</p>";
  }
  std::string list;
  for (size_t i = 0; i < report["gates"].size(); ++i) {
    const ReportNode gate = report["gates"][i];
    if (!is_failing(gate)) continue;
    const std::string what = gate["status"].is("fails") ? fmt::format("{}; {}", gate_value(gate), gate_limit(gate))
                                                        : "cannot be computed: " + shown(gate["reason"]);
    list += fmt::format("<li><a href=\"#{}\">{}</a>: {}</li>", gate["section"].text(), gate_title(gate), what);
  }
  const double failing = v["failed"].number() + v["not_computed"].number();
  return fmt::format("<div class=\"verdict fails\"><p><b>Not accepted</b>: {} of {} gates hold{}</p><ul>{}</ul></div>",
                     shown(v["held"], kCount), shown(v["judged"], kCount), failing > 0 ? ", not these:" : ".", list);
}

std::string gates(const ReportNode& report) {
  std::string rows;
  for (size_t i = 0; i < report["gates"].size(); ++i) {
    const ReportNode gate = report["gates"][i];
    const bool fails = is_failing(gate), off = gate["status"].is("off");
    const char* symbol = fails ? "\u2715" : (off ? "\u2013" : "\u2713");
    const char* style = fails ? "fails" : (off ? "off" : "holds");
    std::string value = gate_value(gate);
    if (gate["reason"].exists() && !off) value = fmt::format("<span class=\"reason\">{}</span>", shown(gate["reason"]));
    rows += fmt::format(
        "<tr class=\"{}\"><td class=\"state\"><span class=\"symbol\">{}</span> {}</td><th scope=\"row\">{}<br>"
        "<code>{}</code></th><td class=\"measured\">{}</td><td class=\"limit\">{}</td><td class=\"where\">{}</td></tr>",
        style, symbol, shown(gate["status"]), gate_title(gate), shown(gate["gate"]), value, gate_limit(gate),
        gate_plot(gate));
  }
  return table(heads({"", "gate", "measured", "limit", ""}), rows, "gates");
}

std::string formats_of(const ReportNode& node) {
  const std::string text = shown(node);
  return text.empty() ? "" : fmt::format("<br><span class=\"formats\">{}</span>", text);
}

std::string ladder_table(const ReportNode& ladder, const ReportNode& batch) {
  const auto throughput = [&](const ReportNode& rung) {
    const ReportNode node = rung["throughput_tokens_per_second"];
    return node.is_number() ? fmt::format("<br><span class=\"formats\">batch of {}:<br>{}</span>", shown(batch, kCount),
                                          shown(node, kRate))
                            : std::string();
  };
  std::string rows;
  for (size_t i = 0; i < ladder.size(); ++i) {
    const ReportNode r = ladder[i];
    const bool candidate = i + 1 == ladder.size();
    rows +=
        fmt::format("<tr class=\"{}\"><th scope=\"row\">{}{}{}</th>", candidate ? "candidate" : "", shown(r["title"]),
                    candidate ? " <span class=\"tag\">candidate</span>" : "", formats_of(r["formats"]));
    if (r["why_not"].exists()) {
      rows += fmt::format("<td colspan=\"9\" class=\"reason\">not measured: {}</td></tr>", shown(r["why_not"]));
      continue;
    }
    const auto share = [&](const char* key) {
      const ReportNode node = r[key];
      return node.is_number() ? fmt::format("<br><span class=\"formats\">{} of roofline</span>", shown(node, kShare))
                              : std::string();
    };
    rows += cell(shown(r["weight_bytes"], kBytes)) + cell(shown(r["kv_bytes_per_token"], kBytes)) +
            cell(shown(r["memory_bytes"], kBytes)) + cell(shown(r["ttft_seconds"], kSeconds)) +
            cell(shown(r["tpot_seconds"], kSeconds)) +
            cell(shown(r["prefill_tokens_per_second"], kRate) + share("prefill_roofline_share")) +
            cell(shown(r["decode_tokens_per_second"], kRate) + share("decode_roofline_share") + throughput(r)) +
            cell(shown(r["perplexity"], kPerplexity)) +
            cell(shown_with_error(r["perplexity_change"], r["perplexity_change_standard_error"], kChange)) + "</tr>";
  }
  return table(
      heads({"", "weights", "KV per token", "memory", "TTFT", "TPOT", "prefill", "decode", "perplexity", "change"}),
      rows, "figures ladder");
}

std::string ladder(const ReportNode& report) {
  const ReportNode rungs = report["ladder"];
  const auto rows = [&](const char* value, const char* error) {
    std::vector<PlotRow> out;
    for (size_t i = 1; i < rungs.size(); ++i)
      if (!rungs[i]["why_not"].exists())
        out.push_back({rungs[i]["title"], rungs[i][value], rungs[i][error], i + 1 == rungs.size()});
    return out;
  };
  std::string plots;
  const auto ratio = [&](const std::string& title, const char* key) {
    const std::vector<PlotRow> all = rows(key, "");
    if (!all.empty() && all.back().value.is_number()) plots += bar_plot(title, all, kRatio, 1);
  };
  ratio("Memory against the base", "memory_ratio");
  ratio("Time to first token against the base", "ttft_ratio");
  ratio("Time per output token against the base", "tpot_ratio");
  const std::vector<PlotRow> changes = rows("perplexity_change", "perplexity_change_standard_error");
  if (!changes.empty() && changes.back().value.is_number())
    plots += change_plot("Change of perplexity", changes, kChange);
  if (!plots.empty())
    plots =
        figure_block(plots) + "<p class=\"note\">The upright line is the base; whiskers are one standard error.</p>";
  return plots + ladder_table(rungs, report["settings"]["batch"]);
}

std::string error_budget(const ReportNode& report) {
  const ReportNode rows = report["error_budget"];
  if (!rows.is_array()) return missing(rows, "no text was given (--text FILE)");
  std::vector<PlotRow> changes, divergences;
  std::string body;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ReportNode r = rows[i];
    const bool all = r["part"].is("all");
    body += fmt::format("<tr class=\"{}\"><th scope=\"row\">{}{}</th>", all ? "candidate" : "", shown(r["part"]),
                        formats_of(r["formats"]));
    if (r["why_not"].exists()) {
      body += fmt::format("<td colspan=\"5\" class=\"reason\">not measured: {}</td></tr>", shown(r["why_not"]));
      continue;
    }
    changes.push_back({r["part"], r["perplexity_change"], r["perplexity_change_standard_error"], all});
    divergences.push_back({r["part"], r["kl_mean"], r["kl_standard_error"], all});
    body += cell(shown_with_error(r["perplexity_change"], r["perplexity_change_standard_error"], kChange)) +
            cell(shown_with_error(r["kl_mean"], r["kl_standard_error"], kNats)) + cell(shown(r["kl_p99"], kNats)) +
            cell(shown(r["kl_max"], kNats)) + cell(shown(r["same_top"], kPercent)) + "</tr>";
  }
  return figure_block(change_plot("Change of perplexity", changes, kChange) +
                      bar_plot("Mean KL divergence, nats", divergences, kNats, 0)) +
         table(heads({"lowered alone", "perplexity", "mean KL", "KL, top percentile", "KL max", "same top"}), body,
               "figures");
}

std::string item_list(const ReportNode& ids) {
  std::string out;
  constexpr size_t kMost = 12;
  for (size_t i = 0; i < std::min(ids.size(), kMost); ++i) out += (i == 0 ? "" : ", ") + shown(ids[i]);
  return ids.size() > kMost ? out + ", \u2026" : out;
}

std::string tasks(const ReportNode& report) {
  const ReportNode all = report["tasks"];
  if (all.size() == 0) return missing(all, "no task was given (--task NAME=DATA.jsonl)");
  std::string body, notes;
  for (size_t t = 0; t < all.size(); ++t) {
    const ReportNode task = all[t];
    if (task["why_not"].exists()) {
      body += fmt::format("<tr><th scope=\"row\">{}</th><td colspan=\"5\" class=\"reason\">not measured: {}</td></tr>",
                          shown(task["name"]), shown(task["why_not"]));
      continue;
    }
    for (size_t m = 0; m < task["metrics"].size(); ++m) {
      const ReportNode metric = task["metrics"][m];
      const bool gate = metric["name"].is(task["headline"].text());
      body += fmt::format("<tr class=\"{}\"><th scope=\"row\">{}</th>", gate ? "candidate" : "",
                          m == 0 ? shown(task["name"]) : "") +
              cell(shown(metric["name"])) + cell(shown(task["items"], kCount)) +
              cell(shown_with_error(metric["base"], metric["base_standard_error"], kScore)) +
              cell(shown_with_error(metric["candidate"], metric["candidate_standard_error"], kScore)) +
              cell(shown_with_error(metric["difference"], metric["difference_standard_error"], kScore)) + "</tr>";
    }
    notes += fmt::format("<p class=\"note\">{}: {} items lost, {} won.", shown(task["name"]),
                         shown(task["lost_count"], kCount), shown(task["won_count"], kCount));
    if (task["lost"].size() > 0) notes += " Lost: " + item_list(task["lost"]) + ".";
    const auto note = [&](const ReportNode& count, std::string_view words) {
      if (count.number() > 0) notes += fmt::format(" {} {}.", shown(count, kCount), words);
    };
    note(task["truncated"], "prompts lost their beginning, being longer than the context");
    note(task["base_errors"], "prompts were refused by the base and count as wrong");
    note(task["candidate_errors"], "prompts were refused by the candidate and count as wrong");
    notes += "</p>";
  }
  return table(heads({"task", "metric", "items", "base", "candidate", "paired difference"}), body, "figures tasks") +
         notes;
}

std::string needle(const ReportNode& report) {
  const ReportNode n = report["needle"];
  if (!n["cells"].is_array()) return missing(n, "no text was given (--text FILE)");
  return fmt::format(
             "<p>Of {} needles the base finds {}, the candidate {}: lost {}, gained {}. Columns: tokens of context. "
             "Rows: "
             "depth in per cent.{}</p>",
             shown(n["needles"], kCount), shown(n["base_found"], kCount), shown(n["candidate_found"], kCount),
             shown(n["lost"], kCount), shown(n["gained"], kCount),
             n["tries"].number() > 1 ? fmt::format(" In each cell: found of {} tries.", shown(n["tries"], kCount))
                                     : "") +
         figure_block(needle_plot(n)) +
         "<p class=\"key\"><span class=\"swatch kept\">\u2713</span> found by both <span class=\"swatch lost\">"
         "\u2715</span> lost <span class=\"swatch gained\">+</span> gained <span class=\"swatch "
         "neither\">\u00B7</span> "
         "found by neither</p>";
}

std::string sensitivity(const ReportNode& report) {
  const ReportNode entries = report["sensitivity"]["entries"], summaries = report["sensitivity_summary"];
  if (!entries.is_array())
    return "<p class=\"missing\">Not measured. <code>octavo sensitivity BASE --text FILE --out FILE</code> lowers each "
           "layer and role alone; give its file here with <code>--sensitivity FILE</code>.</p>";
  std::string out = fmt::format(
      "<p>Mean KL divergence from the base, in nats, when one layer and role is lowered alone; over {} "
      "tokens.</p>",
      shown(report["sensitivity"]["tokens"], kCount));
  ReportNode lowest = summaries[size_t{0}]["lowest"], highest = summaries[size_t{0}]["highest"];
  for (size_t s = 1; s < summaries.size(); ++s) {
    if (summaries[s]["lowest"].number() < lowest.number()) lowest = summaries[s]["lowest"];
    if (summaries[s]["highest"].number() > highest.number()) highest = summaries[s]["highest"];
  }
  for (size_t s = 0; s < summaries.size(); ++s) {
    const ReportNode summary = summaries[s];
    out += fmt::format(
        "<h3>{}{}</h3><p class=\"note\">free: {}, watch: {}, keep wide: {}. Layers across, roles down.</p>",
        summary["part"].is("kv_cache") ? "KV cache " : "", shown(summary["scheme"]), shown(summary["free"], kCount),
        shown(summary["watch"], kCount), shown(summary["keep_wide"], kCount));
    out += "<div class=\"scroll\">" + heat_map(entries, summary, lowest, highest) + "</div>";
    std::string body;
    for (size_t i = 0; i < summary["worst"].size(); ++i) {
      const ReportNode e = entries[static_cast<size_t>(summary["worst"][i].number())];
      const bool head = e["role"].is("lm_head");
      body += "<tr>" + cell(head ? "\u2013" : shown(e["layer"], kCount)) + cell(shown(e["role"])) +
              cell(shown(e["class"])) + cell(shown(e["kl"], kNats)) +
              cell(shown_with_error(e["perplexity_change"], e["perplexity_change_error"], kChange)) + "</tr>";
    }
    out += table(heads({"layer", "role", "class", "mean KL", "perplexity"}), body, "figures worst");
  }
  return out;
}

std::string definition(std::string_view term, const std::string& text) {
  return text.empty() ? "" : fmt::format("<dt>{}</dt><dd>{}</dd>", term, text);
}

std::string plan_of(const ReportNode& side) {
  const ReportNode plan = side["plan"];
  return fmt::format("{}<br><span class=\"formats\">weights {}; activations {}; KV cache {}</span>",
                     shown(side["path"]), shown(plan["weights"]), shown(plan["activations"]), shown(plan["kv_cache"]));
}

std::string method(const ReportNode& report) {
  const ReportNode s = report["settings"], machine = report["machine"];
  std::string out = definition("Base", plan_of(report["base"])) + definition("Candidate", plan_of(report["candidate"]));
  out += definition("Machine", shown(machine["cpu"]) + fmt::format("; kernels {}, {} threads", shown(machine["isa"]),
                                                                   shown(machine["threads"], kCount)));
  if (s["repeat"].number() > 0)
    out += definition(
        "Speed", fmt::format("a prompt of {} tokens, then {} steps after it; medians of {} rounds in which base and "
                             "candidate take turns; ratios are medians of the rounds' own; throughput: output tokens "
                             "of {} such sequences together, by the seconds of their prompts and steps",
                             shown(s["prompt"], kCount), shown(s["generate"], kCount), shown(s["repeat"], kCount),
                             shown(s["batch"], kCount)));
  out += definition("Memory", fmt::format("weights, embedding and the KV cache of one sequence of {} tokens",
                                          shown(report["model"]["context"], kCount)));
  const std::string text = shown(s["text"]);
  if (!text.empty())
    out += definition("Text",
                      fmt::format("{}, windows of {} tokens; {} tokens scored, base and candidate in lock step", text,
                                  shown(s["context"], kCount), shown(report["quality"]["tokens_scored"], kCount)));
  std::string names;
  for (size_t i = 0; i < s["tasks"].size(); ++i) names += (i == 0 ? "" : ", ") + shown(s["tasks"][i]);
  out += definition("Tasks", names);
  const std::string command = shown(s["command"]);
  if (!command.empty()) out += definition("Command", "<code class=\"command\">" + command + "</code>");
  return "<dl>" + out + "</dl>";
}

}  // namespace

std::string render_html(const Json& json) {
  const ReportNode report(json);
  const std::pair<std::string_view, std::function<std::string()>> slots[] = {
      {"title", [&] { return escape_html(report["candidate"]["name"].text()); }},
      {"candidate", [&] { return shown(report["candidate"]["name"]); }},
      {"scheme", [&] { return shown(report["candidate"]["plan"]["scheme"]); }},
      {"base", [&] { return shown(report["base"]["name"]); }},
      {"base_scheme", [&] { return shown(report["base"]["plan"]["scheme"]); }},
      {"created", [&] { return shown(report["created"]); }},
      {"version", [&] { return shown(report["version"]); }},
      {"verdict", [&] { return verdict(report); }},
      {"gates", [&] { return gates(report); }},
      {"ladder", [&] { return ladder(report); }},
      {"error_budget", [&] { return error_budget(report); }},
      {"tasks", [&] { return tasks(report); }},
      {"needle", [&] { return needle(report); }},
      {"sensitivity", [&] { return sensitivity(report); }},
      {"method", [&] { return method(report); }}};
  std::string out;
  std::string_view rest = report_template();
  for (size_t open = rest.find("{{"); open != std::string_view::npos; open = rest.find("{{")) {
    const size_t close = rest.find("}}", open);
    OCTAVO_CHECK(close != std::string_view::npos, "a mark in report.html has no end");
    const std::string_view name = rest.substr(open + 2, close - open - 2);
    const auto slot = std::find_if(std::begin(slots), std::end(slots), [&](const auto& s) { return s.first == name; });
    OCTAVO_CHECK(slot != std::end(slots), "report.html has an unknown mark");
    out += rest.substr(0, open);
    out += slot->second();
    rest.remove_prefix(close + 2);
  }
  return out + std::string(rest);
}

}  // namespace octavo
