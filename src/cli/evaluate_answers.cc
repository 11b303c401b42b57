// octavo evaluate MODEL --answers PROMPTS: baseline answers, and how they differ from others.
#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "cli/evaluate_modes.h"
#include "cli/terminal.h"
#include "evaluate/answers.h"
#include "evaluate/tasks/task.h"

namespace octavo {
namespace {

Json json_of(const std::vector<AnswerDifference>& rows) {
  Json list = Json::array();
  for (const AnswerDifference& row : rows)
    list.push_back({{"id", row.id},
                    {"same", row.same},
                    {"common_tokens", row.common},
                    {"base_tokens", row.base_tokens},
                    {"tokens", row.tokens},
                    {"largest_logprob_change", row.largest_logprob_change},
                    {"base_text", row.base_text},
                    {"text", row.text}});
  return list;
}

// Columns of one line each: control characters and what is past `width` code points left out.
std::string one_line(const std::string& text, size_t width) {
  std::string out;
  size_t shown = 0;
  for (const char c : text) {
    if ((c & 0xC0) != 0x80 && ++shown > width) return out + "…";
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7F ? ' ' : c;
  }
  return out;
}

void print(const std::vector<AnswerDifference>& rows) {
  const auto same = std::count_if(rows.begin(), rows.end(), [](const auto& row) { return row.same; });
  fmt::print("{} of {} answers are the same\n", same, rows.size());
  for (const AnswerDifference& row : rows) {
    if (row.same) continue;
    fmt::print("\n{}: the first {} tokens of {} are common (their logprobs move by up to {:.4f})\n  - {}\n  + {}\n",
               row.id, row.common, row.base_tokens, row.largest_logprob_change, one_line(row.base_text, 100),
               one_line(row.text, 100));
  }
}

void print(const std::vector<Json>& lines) {
  Table table({"id", "prompt", "answer", "finish", "text"});
  table.align_left(4);
  for (size_t i = 1; i < lines.size(); ++i) {
    const Json& line = lines[i];
    const bool refused = line.contains("error");
    table.add({line["id"].get<std::string>(), fmt::format("{}", line["prompt_tokens"].get<int64_t>()),
               refused ? "" : fmt::format("{}", line["tokens"].size()),
               refused ? "refused" : line["finish_reason"].get<std::string>(),
               one_line(line[refused ? "error" : "text"].get<std::string>(), 60)});
  }
  fmt::print("{}", table.text());
}

}  // namespace

Result<void> evaluate_answers(const EvaluateFlags& flags) {
  if (flags.boundary && !flags.answers.empty())
    return fail({.what = "--boundary brings its own prompts", .where = "--answers", .remedy = "leave one of them out"});
  std::vector<Json> base;
  if (!flags.diff.empty()) {
    OCTAVO_ASSIGN(base, read_jsonl(flags.diff));
  }
  OCTAVO_ASSIGN(const std::unique_ptr<Model> model, flags.model.load(flags.output.json));
  std::vector<AnswerPrompt> prompts;
  if (flags.boundary) {
    prompts = boundary_prompts(*model);
  } else {
    OCTAVO_ASSIGN(prompts, read_prompts(*model, flags.answers));
  }
  const int64_t max_tokens = flags.max_tokens > 0 ? flags.max_tokens : 64;
  OCTAVO_ASSIGN(const ModelSpec spec, model_spec(flags));
  OCTAVO_ASSIGN(
      std::optional<SectionLog> log,
      open_sections(flags, "--answers", {spec}, "", {{"prompts", prompts_hash(prompts)}, {"max_tokens", max_tokens}}));
  std::vector<Json> lines;
  {
    Progress progress("answering", flags.output.json);
    const auto report = [&](int64_t done, int64_t total) {
      progress.update(static_cast<double>(done), static_cast<double>(total));
    };
    OCTAVO_ASSIGN(lines, write_answers(*model, prompts, max_tokens, report, address(log)));
  }
  if (!flags.out.empty()) OCTAVO_TRY(write_json_lines(flags.out, lines));
  if (flags.diff.empty()) {
    if (flags.output.json) {
      fmt::print("{}\n", Json(lines).dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
      print(lines);
    }
    return {};
  }
  OCTAVO_ASSIGN(const std::vector<AnswerDifference> rows, compare_answers(base, lines));
  if (flags.output.json) {
    fmt::print("{}\n", json_of(rows).dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print(rows);
  }
  return {};
}

}  // namespace octavo
