// octavo accept: measures a candidate against its base, judges it by the gates, writes the report. Exit code 3 where a
// gate does not hold.
#include "evaluate/accept/accept.h"

#include <fmt/format.h>

#include <fstream>
#include <optional>

#include "base/file.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/evaluate_modes.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/version.h"
#include "evaluate/accept/gates.h"
#include "evaluate/report/html.h"

namespace octavo {
namespace {

constexpr int kNotAccepted = 3;

// The command as it was typed, quoted where a shell needs it.
std::string typed_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string raw(std::istreambuf_iterator<char>(file), {});
  std::string out;
  for (size_t begin = 0; begin < raw.size();) {
    const size_t end = std::min(raw.find('\0', begin), raw.size());
    const std::string word = begin == 0 ? "octavo" : raw.substr(begin, end - begin);
    const bool plain = !word.empty() && word.find_first_of(" \t\n'\"\\$*?|&;<>(){}[]`#~!") == std::string::npos;
    std::string quoted = "'";
    for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
    out += (out.empty() ? "" : " ") + (plain ? word : quoted + "'");
    begin = end + 1;
  }
  return out;
}

// NAME=DATA.jsonl, or the .json file of a set of one's own, which may name its data itself.
AcceptTask parse_task(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) return {.name = text};
  return {.name = text.substr(0, equals), .data = text.substr(equals + 1)};
}

class AcceptCommand final : public Command {
 public:
  std::string_view name() const override { return "accept"; }
  std::string_view group() const override { return "Prove"; }
  std::string_view summary() const override {
    return "Gates on memory, speed and quality of a candidate; a report to sign (exit code 3: a gate fails)";
  }
  bool wants_json() const override { return output_.json; }
  int exit_code() const override { return accepted_ ? 0 : kNotAccepted; }

  void declare(Flags& flags) override {
    model_.declare(flags, "BASE", "The model to compare with: a folder or a .gguf file");
    flags.argument("CANDIDATE", candidate_, "The model to accept (default: BASE under the precision flags)", "");
    flags.option("base-quantization", base_scheme_, "BASE's own scheme; auto: what its checkpoint says");
    flags.group("Gates and report");
    flags.option("gates", gates_, "A JSON file of limits (docs/accept.md); what it does not name keeps its default");
    flags.option("out", out_, "Folder for report.html, report.json, model_card.md");
    flags.option("sensitivity", sensitivity_, "A file of `octavo sensitivity` for the heat map");
    flags.group("Quality");
    flags.option("text", text_, "The text file (UTF-8) for perplexity, KL and needles");
    flags.option("context", windows_.context, "Tokens of a window");
    flags.option("windows", windows_.windows, "Number of windows (0: all of the text)");
    flags.option("task", tasks_, "NAME=DATA.jsonl, or the .json of a set of your own; may be repeated");
    flags.option("limit", selection_.limit, "Items of each task (0: all)");
    flags.option("seed", selection_.seed, "0: the first items; else a sample of --limit items");
    flags.option("needle-lengths", lengths_, "Tokens, comma-separated (default: those of 1024 to 8192 that fit)");
    flags.option("needle-depths", depths_, "Per cent, comma-separated");
    flags.option("needle-tries", needle_.tries, "Facts per cell");
    flags.group("Speed");
    flags.option("prompt", speed_.prompt, "Tokens of the prefill");
    flags.option("generate", speed_.generate, "Decode steps");
    flags.option("batch", batch_, "Sequences together, whose output tokens per second are the throughput");
    flags.option("repeat", speed_.repeat, "Rounds in which base and candidate take turns (0: no speed)");
    flags.group("Options");
    output_.declare(flags);
    given_ = flags.given();
  }

  Result<void> run() override {
    Gates gates = default_gates();
    if (!gates_.empty()) {
      OCTAVO_ASSIGN(const std::string text, read_flag_file("--gates", gates_, size_t{1} << 20));
      OCTAVO_ASSIGN(gates, parse_gates(text, gates_));
    }
    OCTAVO_ASSIGN(const AcceptOptions options, options_of());
    OCTAVO_ASSIGN(Json report, measure(options));
    judge(report, gates);
    OCTAVO_TRY(write(report, options));
    accepted_ = report["verdict"]["accepted"].get<bool>();
    if (output_.json)
      fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
    else
      print(report);
    return {};
  }

 private:
  Result<AcceptOptions> options_of() {
    AcceptOptions options{.text = text_,
                          .windows = windows_,
                          .speed = speed_,
                          .batch = batch_,
                          .selection = selection_,
                          .needle = needle_,
                          .sensitivity = sensitivity_,
                          .unfinished = std::filesystem::path(out_) / "unfinished",
                          .version = kVersion,
                          .command = typed_command()};
    options.base.path = model_.model;
    OCTAVO_TRY(model_.machine.apply(options.base.options));
    options.candidate.path = candidate_.empty() ? model_.model : candidate_;
    options.candidate.options = options.base.options;
    options.base.options.plan.scheme = base_scheme_;
    OCTAVO_ASSIGN(options.candidate.options.plan, model_.request());
    for (const std::string& task : tasks_) options.tasks.push_back(parse_task(task));
    if (!lengths_.empty()) {
      OCTAVO_ASSIGN(options.needle.lengths, parse_numbers(lengths_, "--needle-lengths"));
    }
    OCTAVO_ASSIGN(options.needle.depths, parse_numbers(depths_, "--needle-depths"));
    OCTAVO_TRY(check_uses());
    OCTAVO_TRY(check_ranges());
    if (candidate_.empty()) OCTAVO_TRY(check_differs(options));
    return options;
  }

  // Flags of parts that do not run.
  Result<void> check_uses() const {
    if (text_.empty())
      OCTAVO_TRY(given_.refuse({"context", "windows", "needle-lengths", "needle-depths", "needle-tries"},
                               "it goes with --text FILE"));
    if (tasks_.empty()) OCTAVO_TRY(given_.refuse({"limit", "seed"}, "it goes with --task"));
    if (speed_.repeat == 0) OCTAVO_TRY(given_.refuse({"prompt", "generate", "batch"}, "--repeat 0 leaves speed out"));
    return {};
  }

  Result<void> check_ranges() const {
    const auto out_of_range = [](const char* flag, int64_t found, const char* expected) {
      return fail(
          {.what = "a number is out of range", .where = flag, .found = fmt::format("{}", found), .expected = expected});
    };
    if (speed_.repeat < 0 || speed_.repeat > 1000) return out_of_range("--repeat", speed_.repeat, "0 to 1000");
    constexpr int64_t kMost = 1'000'000'000;
    if (speed_.prompt < 1 || speed_.prompt > kMost) return out_of_range("--prompt", speed_.prompt, "1 to 1000000000");
    if (speed_.generate < 1 || speed_.generate > kMost)
      return out_of_range("--generate", speed_.generate, "1 to 1000000000");
    if (batch_ < 1 || batch_ > 1024) return out_of_range("--batch", batch_, "1 to 1024");
    if (windows_.windows < 0) return out_of_range("--windows", windows_.windows, "0 (all of the text) or more");
    if (selection_.limit < 0) return out_of_range("--limit", selection_.limit, "0 (all) or more");
    return {};
  }

  static Result<void> check_differs(const AcceptOptions& options) {
    OCTAVO_ASSIGN(const std::vector<LoweredPart> parts, lowered_parts(options.base, options.candidate));
    if (!parts.empty()) return {};
    return fail({.what = "there is nothing to accept: the candidate is the base",
                 .where = options.base.path.string(),
                 .remedy = "name a CANDIDATE folder, or a plan with --quantization and the other precision flags"});
  }

  Result<Json> measure(const AcceptOptions& options) const {
    std::string label;
    std::optional<Progress> bar;
    return measure_acceptance(options, [&](std::string_view stage, int64_t done, int64_t total) {
      if (stage != label) {
        label = stage;
        bar.emplace(label, output_.json);
      }
      bar->update(static_cast<double>(done), static_cast<double>(total));
    });
  }

  Result<void> write(const Json& report, const AcceptOptions& options) const {
    const std::filesystem::path folder = out_;
    OCTAVO_TRY(write_text_file(folder / "report.html", render_html(report)));
    OCTAVO_TRY(write_text_file(folder / "model_card.md", render_model_card(report)));
    OCTAVO_TRY(
        write_text_file(folder / "report.json", report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"));
    remove_unfinished(options);
    return {};
  }

  void print(const Json& report) const {
    Table table({"gate", "measured", "limit", ""});
    table.align_left(3);
    for (const Json& gate : report["gates"]) {
      const std::string status = gate["status"];
      const FigureUnit unit = unit_of_gate(gate["gate"].get<std::string>());
      const auto figure = [&](const char* key, FigureUnit shown_in) {
        return gate.contains(key) ? plain_figure(gate[key].get<double>(), shown_in) : std::string();
      };
      std::string name = gate["gate"], word = status;
      if (gate.contains("subject")) name += " " + gate["subject"].get<std::string>();
      if (status == "fails") word = "FAILS";
      if (status == "not computed") word = "NOT COMPUTED: " + gate["reason"].get<std::string>();
      table.add({name, figure("value", unit),
                 figure("limit", unit == FigureUnit::kChange ? FigureUnit::kPercent : unit), word});
    }
    const Json& verdict = report["verdict"];
    fmt::print("{}{}: {} of {} gates hold; {}\n", table.text(), accepted_ ? "accepted" : "NOT ACCEPTED",
               verdict["held"].get<int64_t>(), verdict["judged"].get<int64_t>(),
               (std::filesystem::path(out_) / "report.html").string());
  }

  ModelFlags model_;
  std::string candidate_, base_scheme_ = "bf16", gates_, out_ = "acceptance", sensitivity_, text_;
  std::string lengths_, depths_ = "0,25,50,75,100";
  PerplexityOptions windows_{.context = 1024, .windows = 12};
  SpeedOptions speed_;
  int64_t batch_ = 8;
  std::vector<std::string> tasks_;
  TaskSelection selection_;
  NeedleOptions needle_ = AcceptOptions().needle;
  OutputOptions output_;
  GivenFlags given_;
  bool accepted_ = false;
};

}  // namespace

std::unique_ptr<Command> make_accept_command() {
  return std::make_unique<AcceptCommand>();
}

}  // namespace octavo
