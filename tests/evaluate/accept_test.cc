#include "evaluate/accept/accept.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/random.h"
#include "evaluate/accept/accept_parts.h"
#include "evaluate/accept/gates.h"
#include "evaluate/accept/scheme_summaries.h"
#include "evaluate/model_facts.h"
#include "evaluate/report/html.h"
#include "support/kv_calibration_file.h"
#include "support/test_models.h"

namespace octavo {
namespace {

// A report in which every gate has a figure well within its limit.
Json good_report() {
  Json measured = Json::object();
  for (const GateRow& row : gate_rows()) {
    const double limit = row.standard.value_or(1);
    measured[std::string(row.measure)] = {{"value", row.is_max ? limit / 2 : limit * 2 + 1}};
  }
  measured["task_drop"] = Json::array({{{"subject", "a"}, {"items", 500}, {"value", 0.0}, {"standard_error", 0.01}}});
  return {{"measured", measured}};
}

std::string status_of(const Json& report, std::string_view gate) {
  for (const Json& entry : report["gates"])
    if (entry["gate"] == gate) return entry["status"];
  return "absent";
}

TEST(Gates, EachAloneDecides) {
  Json good = good_report();
  judge(good, default_gates());
  EXPECT_TRUE(good["verdict"]["accepted"].get<bool>()) << good["gates"].dump(1);
  for (const GateRow& row : gate_rows()) {
    if (!row.standard) {
      EXPECT_EQ(status_of(good, row.name), "absent");
      continue;
    }
    const std::string measure(row.measure);
    const auto judged = [&](const Json& figure) {
      Json report = good_report();
      report["measured"][measure] = figure;
      judge(report, default_gates());
      EXPECT_EQ(report["verdict"]["accepted"].get<bool>(), status_of(report, row.name) == "holds") << row.name;
      return status_of(report, row.name);
    };
    const double limit = *row.standard;
    EXPECT_EQ(judged({{"value", limit}}), "holds") << row.name;
    EXPECT_EQ(judged({{"value", row.is_max ? limit + 1e-3 : limit - 1e-3}}), "fails") << row.name;
    for (const Json& broken : {Json{{"value", NAN}}, Json{{"value", INFINITY}}, Json{{"value", nullptr}},
                               Json::object(), Json{{"why_not", "for a reason"}}})
      EXPECT_EQ(judged(broken), "not computed") << row.name << broken.dump();
  }
  Json empty = Json::object();
  judge(empty, default_gates());
  EXPECT_FALSE(empty["verdict"]["accepted"].get<bool>());
}

TEST(Gates, ATaskMayDropWithinItsStandardErrorsAndEachTaskCounts) {
  const auto accepted = [](double drop, double error, double allowed) {
    Json report = good_report();
    report["measured"]["task_drop"].push_back(
        {{"subject", "b"}, {"items", 500}, {"value", drop}, {"standard_error", error}});
    Gates gates = default_gates();
    gates.task_standard_errors = allowed;
    judge(report, gates);
    return report["verdict"]["accepted"].get<bool>();
  };
  EXPECT_TRUE(accepted(0.02, 0.011, 1));
  EXPECT_FALSE(accepted(0.02, 0.009, 1));
  EXPECT_TRUE(accepted(0.02, 0.009, 2));
  EXPECT_FALSE(accepted(0.02, 0.5, 0));
}

// The fewer the items, the wider the standard error within which a drop passes: below a number nothing passes.
TEST(Gates, ATaskOfTooFewItemsIsNotJudged) {
  const auto status = [](int items, const char* file) {
    Json report = good_report();
    report["measured"]["task_drop"][0]["items"] = items;
    judge(report, parse_gates(file, "g.json").value());
    for (const Json& gate : report["gates"])
      if (gate["gate"] == "task_drop_max") return gate["status"].get<std::string>() + " " + gate.value("reason", "");
    return std::string();
  };
  EXPECT_EQ(status(100, "{}"), "holds ");
  for (const char* word : {"not computed", "99 items", "task_items_min", "--limit"})
    EXPECT_NE(status(99, "{}").find(word), std::string::npos) << status(99, "{}");
  EXPECT_EQ(status(20, R"({"task_items_min": 20})"), "holds ");
  EXPECT_NE(status(999, R"({"task_items_min": 1000})").find("not computed"), std::string::npos);
}

TEST(Gates, AFileIsLaidOverTheDefaults) {
  const auto gates = parse_gates(R"({"kl_mean_max": "off", "same_top_min": 0.9, "task_standard_errors": 2})", "g.json");
  ASSERT_TRUE(gates.has_value()) << gates.error().message();
  Json report = good_report();
  report["measured"]["kl_mean"] = {{"why_not", "no text"}};
  report["measured"]["same_top"] = {{"value", 0.89}};
  judge(report, *gates);
  EXPECT_EQ(status_of(report, "kl_mean_max"), "off");
  EXPECT_EQ(status_of(report, "same_top_min"), "fails");
  EXPECT_EQ(report["verdict"]["off"], 1);
  for (const char* wrong :
       {"[]", "3", "{", R"({"kl": 1})", R"({"kl_mean_max": "of"})", R"({"kl_mean_max": null})",
        R"({"kl_mean_max": true})", R"({"kl_mean_max": -1})", R"({"kl_mean_max": 1, "kl_mean_max": 2})",
        R"({"task_standard_errors": "off"})", R"({"kl_mean_max": 1e999})"}) {
    const auto refused = parse_gates(wrong, "g.json");
    ASSERT_FALSE(refused.has_value()) << wrong;
    EXPECT_NE(refused.error().message().find("g.json"), std::string::npos) << wrong;
  }
  EXPECT_NE(parse_gates(R"({"kl": 1})", "g").error().message().find("perplexity_change_max"), std::string::npos);
}

TEST(Gates, WithEverythingSwitchedOffNothingIsAccepted) {
  Gates gates = default_gates();
  for (auto& [name, limit] : gates.limits) limit.reset();
  Json report = good_report();
  judge(report, gates);
  EXPECT_FALSE(report["verdict"]["accepted"].get<bool>());
}

TEST(PairedTask, StandardErrorIsThatOfTheItemsDifferences) {
  Task task{.name = "t"};
  TaskResult base, candidate;
  // Seven of eight alike: the difference has an error of its own, far below either's.
  const int before[] = {1, 0, 1, 1, 0, 0, 1, 1}, after[] = {1, 0, 1, 1, 0, 0, 1, 0};
  for (int i = 0; i < 8; ++i) {
    task.items.push_back({.id = fmt::format("item {}", i)});
    for (const auto& [result, value] : {std::pair{&base, before[i]}, std::pair{&candidate, after[i]}})
      result->records.push_back({{"index", i}, {"acc", value}, {"acc_norm", value}, {"acc_bytes", value}});
  }
  base.metrics = task_metrics(task, base.records);
  candidate.metrics = task_metrics(task, candidate.records);
  const Json paired = paired_task(task, base, candidate);
  const Json& acc = paired["metrics"][0];
  EXPECT_EQ(paired["headline"], acc["name"]);
  EXPECT_DOUBLE_EQ(acc["difference"].get<double>(), -0.125);
  EXPECT_NEAR(acc["difference_standard_error"].get<double>(), 0.125, 1e-12);  // one of eight differs by one
  EXPECT_GT(acc["base_standard_error"].get<double>(), 0.17);
  EXPECT_EQ(paired["lost"], Json::array({"item 7"}));
  EXPECT_EQ(paired["won_count"], 0);
}

// exp(-mean) of each side: the error of the difference against many draws of the items.
TEST(PairedTask, ThePerplexityDifferencesErrorIsThatOfResampledItems) {
  Task task{.name = "t", .kind = TaskKind::kContinuation};
  Random random(3);
  TaskResult base, candidate;
  for (int i = 0; i < 400; ++i) {
    task.items.push_back({.id = fmt::format("{}", i)});
    const double before = -3 + random.normal(), after = before - 1 + 0.2 * random.normal();
    base.records.push_back({{"loglikelihood", before}, {"acc", 0}});
    candidate.records.push_back({{"loglikelihood", after}, {"acc", 0}});
  }
  const auto perplexity = [](const std::vector<Json>& records, const std::vector<size_t>& picked) {
    double sum = 0;
    for (const size_t i : picked) sum += records[i]["loglikelihood"].get<double>();
    return std::exp(-sum / static_cast<double>(picked.size()));
  };
  std::vector<double> drawn;
  for (int draw = 0; draw < 1000; ++draw) {
    std::vector<size_t> picked(400);
    for (size_t& i : picked) i = random.below(400);
    drawn.push_back(perplexity(candidate.records, picked) - perplexity(base.records, picked));
  }
  base.metrics = task_metrics(task, base.records);
  candidate.metrics = task_metrics(task, candidate.records);
  const Json row = paired_task(task, base, candidate)["metrics"][0];
  EXPECT_EQ(row["name"], "perplexity");
  // mean_error() is of the mean of n draws; here each draw is one.
  const double deviation = mean_error(drawn).standard_error * std::sqrt(1000.0);
  EXPECT_NEAR(row["difference_standard_error"].get<double>(), deviation, 0.1 * deviation);
}

TEST(PairedNeedles, LostAndGainedDoNotCancel) {
  const std::vector<NeedleCell> base = {{128, 0, 3, 2, -1, 0}, {128, 50, 3, 0, -9, 7}, {128, 100, 3, 3, 0, 0}},
                                candidate = {{128, 0, 3, 1, -2, 1}, {128, 50, 3, 1, -7, 5}, {128, 100, 3, 3, 0, 0}};
  const Json both = paired_needles({.lengths = {128}, .depths = {0, 50, 100}, .tries = 3}, needle_cells(base),
                                   needle_cells(candidate));
  EXPECT_EQ(both["lost"], 1);
  EXPECT_EQ(both["gained"], 1);
  EXPECT_EQ(both["needles"], 9);
  EXPECT_EQ(both["base_found"], both["candidate_found"]);
}

TEST(SensitivitySummary, CountsAndRanksTheEntriesOfEachScheme) {
  Sensitivity s;
  s.model.layers = 2;
  for (const double kl : {0.0004, 0.02, 0.003}) s.entries.push_back({.role = "q_proj", .scheme = "fp8", .kl = kl});
  s.entries.push_back({.role = "q_proj", .scheme = "int4", .kl = 0.5});
  // Noise does not make a layer cost: the change lies within two standard errors.
  s.entries.push_back({.role = "k_proj", .scheme = "fp8", .perplexity_change = 0.3, .perplexity_change_error = 0.2});
  const Json summary = scheme_summaries(s);
  ASSERT_EQ(summary.size(), 2u);
  EXPECT_EQ(summary[0]["scheme"], "fp8");
  EXPECT_EQ(summary[0]["free"], 2);
  EXPECT_EQ(summary[0]["watch"], 1);
  EXPECT_EQ(summary[0]["keep_wide"], 1);
  EXPECT_EQ(summary[0]["worst"], Json::array({1, 2, 0, 4}));
  EXPECT_EQ(summary[0]["highest"], 0.02);
  EXPECT_EQ(summary[1]["worst"], Json::array({3}));
}

TEST(SensitivitySummary, WeightsAndCachesOfOneNameStayApart) {
  Sensitivity s;
  s.model.layers = 1;
  s.entries = {{.role = "q_proj", .scheme = "int8", .kl = 0.5}, {.role = "k_cache", .scheme = "int8", .kl = 0.0001}};
  const Json summary = scheme_summaries(s);
  ASSERT_EQ(summary.size(), 2u);
  EXPECT_EQ(summary[0]["part"], "weights");
  EXPECT_EQ(summary[0]["worst"], Json::array({0}));
  EXPECT_EQ(summary[0]["free"], 0);
  EXPECT_EQ(summary[1]["part"], "kv_cache");
  EXPECT_EQ(summary[1]["worst"], Json::array({1}));
  EXPECT_EQ(summary[1]["free"], 1);
}

TEST(Figures, AreRoundedWithTheirUnits) {
  using enum FigureUnit;
  EXPECT_EQ(plain_figure(0.03691, kChange), "+3.69 %");
  EXPECT_EQ(plain_figure(0, kChange), "0 %");
  EXPECT_EQ(figure_text(-0.0012, kChange), "\u22120.12\u202F%");
  EXPECT_EQ(plain_figure(163.8e6, kBytes), "163.8 MB");
  EXPECT_EQ(plain_figure(0.0553, kSeconds), "55.3 ms");
  EXPECT_EQ(plain_figure(0.000652, kNats), "0.000652");
  EXPECT_EQ(plain_figure(1541.4, kRate), "1541 tok/s");
  EXPECT_EQ(plain_error(0.00241, 0.0312, kNats), "0.0024");
  EXPECT_EQ(plain_figure(NAN, kNats), "not finite");
}

TEST(Report, WhatAModelIsCalledCannotBreakThePage) {
  Json report = good_report();
  report["candidate"] = {{"name", "<script>alert(1)</script>|*\"&"}, {"path", "a<b"}};
  report["ladder"] = Json::array({{{"title", "base"}}, {{"title", "<i>"}, {"why_not", "</table>"}}});
  report["tasks"] = Json::array({{{"name", "<b>"}, {"why_not", "a & b"}}});
  judge(report, default_gates());
  const std::string page = render_html(report), card = render_model_card(report);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("<b><"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;alert(1)&lt;/script&gt;"), std::string::npos);
  EXPECT_NE(page.find("a &amp; b"), std::string::npos);
  EXPECT_NE(card.find("\\<script"), std::string::npos);
  EXPECT_NE(card.find("\\|\\*"), std::string::npos);
}

std::string plan_text(const Json& report, const char* side) {
  return report[side]["plan"]["scheme"];
}

TEST(Accept, TheLadderStepsOverWhatThePlanDoesNotLower) {
  const TinyModelFolder folder("llama_untied_hd64");
  struct Case {
    std::string scheme, kv;
    std::vector<std::string> titles;
  };
  for (const Case& c :
       {Case{"fp8", "", {"base", "weights", "+ activations", "+ KV cache"}},
        Case{"fp8", "bf16", {"base", "weights", "+ activations"}}, Case{"fp8-weight", "bf16", {"base", "weights"}},
        Case{"fp8-weight", "int8", {"base", "weights", "+ KV cache"}},
        Case{"bf16", "fp8_e4m3", {"base", "KV cache"}}}) {
    ModelSpec base{.path = folder.path()}, candidate = base;
    base.options.plan.scheme = "bf16";
    candidate.options.plan.scheme = c.scheme;
    candidate.options.plan.kv_cache_dtype = c.kv;
    const auto rungs = ladder_of(base, candidate);
    ASSERT_TRUE(rungs.has_value()) << rungs.error().message();
    std::vector<std::string> titles;
    for (const LadderRung& rung : *rungs) titles.push_back(rung.title);
    EXPECT_EQ(titles, c.titles) << c.scheme << " " << c.kv;
    EXPECT_EQ(rungs->back().formats.empty(), false);
  }
}

TEST(Accept, WithoutATextOnlyMemoryAndSpeedAreMeasured) {
  const TinyModelFolder folder("llama_untied_hd64");
  const TestFolder out;
  AcceptOptions options{
      .speed = {.prompt = 8, .generate = 2, .repeat = 1}, .unfinished = out.path() / "unfinished", .version = "test"};
  options.base.path = options.candidate.path = folder.path();
  options.base.options.threads = options.candidate.options.threads = 1;
  options.base.options.plan.scheme = "bf16";
  options.candidate.options.plan.scheme = "fp8";
  const auto report = measure_acceptance(options);
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_EQ(plan_text(*report, "base"), "bf16");
  EXPECT_EQ(plan_text(*report, "candidate"), "fp8");
  EXPECT_LT((*report)["measured"]["memory_ratio"]["value"].get<double>(), 1);
  EXPECT_GT((*report)["measured"]["tpot_ratio"]["value"].get<double>(), 0);
  EXPECT_GT((*report)["measured"]["throughput_ratio"]["value"].get<double>(), 0);
  for (const size_t rung : {size_t{0}, (*report)["ladder"].size() - 1})
    EXPECT_GT((*report)["ladder"][rung]["throughput_tokens_per_second"].get<double>(), 0);
  EXPECT_TRUE((*report)["measured"]["kl_mean"].contains("why_not"));
}

// The model against itself on a short text, without speed.
AcceptOptions on_text(const TinyModelFolder& folder, const TestFolder& out) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>('a' + i * i % 26);
  out.write("text.txt", text);
  AcceptOptions options{.text = out / "text.txt",
                        .windows = {.context = 64, .windows = 2},
                        .speed = {.repeat = 0},
                        .unfinished = out / "unfinished",
                        .version = "test"};
  options.base.path = options.candidate.path = folder.path();
  return options;
}

TEST(Accept, ACandidateWithoutFastKernelsIsNotMeasured) {
  const TinyModelFolder folder("llama_untied_hd64");
  const TestFolder out;
  AcceptOptions options = on_text(folder, out);
  options.base.options.isa = options.candidate.options.isa = Isa::kAvx2;
  options.base.options.plan.scheme = options.candidate.options.plan.scheme = "bf16";
  PrecisionPlan plan = open_planned(folder.path(), options.base.options)->plan;
  for (auto& [name, linear] : plan.linears) linear.weight = row_format(ElementType::kE5m2);
  options.candidate.options.exact_plan = plan;
  Result<Json> report = measure_acceptance(options);
  ASSERT_TRUE(report.has_value()) << report.error().message();
  judge(*report, default_gates());
  for (const Json& gate : (*report)["gates"])
    if (gate["gate"] == "perplexity_change_max" || gate["gate"] == "kl_mean_max") {
      EXPECT_EQ(gate["status"], "not computed");
      EXPECT_NE(gate["reason"].get<std::string>().find("no fast kernel for fp8_e5m2"), std::string::npos)
          << gate.dump();
    }
  EXPECT_FALSE((*report)["verdict"]["accepted"].get<bool>());
  EXPECT_NE(render_html(*report).find("no fast kernel"), std::string::npos);
}

// The calibration that a flag names is part of the candidate's plan everywhere: heading, ladder, budget.
TEST(Accept, AKvCalibrationGivenByFlagIsInThePlan) {
  const TinyModelFolder folder("llama_untied_hd64");
  const TestFolder out;
  const ModelConfig config = Checkpoint::open(folder.path())->config();
  KvCalibration calibration = made_up_kv_calibration(config);
  calibration.kv_cache = "fp8_e4m3:static";
  for (KvCalibration::Layer& layer : calibration.layers) layer.k = layer.v = "fp8_e4m3:static";
  write_kv_calibration(out / "kv.json", calibration, config);
  AcceptOptions options = on_text(folder, out);
  options.base.options.plan.scheme = "bf16";
  options.candidate.options.plan.kv_calibration = out / "kv.json";  // of a BF16 checkpoint: the cache alone
  const auto report = measure_acceptance(options);
  ASSERT_TRUE(report.has_value()) << report.error().message();
  const std::string heading = (*report)["candidate"]["plan"]["kv_cache"];
  EXPECT_NE(heading.find("per head, stored scale"), std::string::npos) << heading;
  EXPECT_EQ((*report)["ladder"].back()["title"], "KV cache");
  std::vector<std::string> parts;
  for (const Json& row : (*report)["error_budget"]) {
    parts.push_back(row["part"]);
    if (row["part"] != "kernels") {
      EXPECT_GT(row["kl_mean"].get<double>(), 0) << row.dump();
    }
  }
  EXPECT_EQ(parts, (std::vector<std::string>{"K", "V", "kernels", "all"}));
}

TEST(ModelFacts, ThePlansFingerprintSeesWhatItsNamesLeaveOut) {
  const TinyModelFolder folder("llama_untied_hd64");
  const ModelConfig config = Checkpoint::open(folder.path())->config();
  const TestFolder out;
  KvCalibration calibration = made_up_kv_calibration(config);
  write_kv_calibration(out / "a.json", calibration, config);
  calibration.layers[1].k_range[0] *= 1.25f;
  write_kv_calibration(out / "b.json", calibration, config);
  std::map<std::string, std::string> seen;
  const auto add = [&](const std::string& scheme, const std::string& kv, const std::string& values) {
    ModelOptions options;
    options.plan.scheme = scheme;
    options.plan.kv_cache_dtype = kv;
    if (!values.empty()) options.plan.kv_calibration = out / values;
    const auto planned = open_planned(folder.path(), options);
    ASSERT_TRUE(planned.has_value()) << planned.error().message();
    const std::string what = scheme + " " + kv + " " + values;
    const auto [at, fresh] = seen.emplace(plan_fingerprint(planned->plan, planned->checkpoint), what);
    EXPECT_TRUE(fresh) << what << " looks like " << at->second;
  };
  for (const char* kv : {"bf16", "fp8_e4m3:dynamic", "fp8_e4m3:dynamic:wide4", "fp8_e4m3:dynamic:wide2",
                         "fp8_e4m3:dynamic:skip0", "fp8_e4m3:dynamic:skip1"})
    add("bf16", kv, "");
  for (const char* values : {"a.json", "b.json"})
    for (const char* kv : {"fp8_e4m3:dynamic", "fp8_e4m3:static", "fp8_e4m3:tensor", "fp8_e4m3:static:temperature"})
      add("bf16", kv, values);
  add("fp8", "bf16", "");
  add("fp8-static", "bf16", "");  // the same names; other scale times
  const auto skip = open_planned(folder.path(), {.plan = {.scheme = "bf16", .kv_cache_dtype = "int8:skip1"}});
  EXPECT_EQ(kv_cache_name(skip->plan), "int8 (2), bf16 (1)");
  const auto fixed = open_planned(folder.path(), {.plan = {.scheme = "bf16", .kv_cache_dtype = "int8:static:wide4"}});
  EXPECT_EQ(kv_cache_name(fixed->plan), "int8:static:wide4");
}

TEST(ModelFacts, TheModelsFingerprintSeesItsFilesAlone) {
  const TestFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", "abc");
  const std::string before = model_fingerprint(folder.path());
  folder.write("items.jsonl", "a run's own file");
  folder.write("s.json.log", "another");
  EXPECT_EQ(model_fingerprint(folder.path()), before);
  folder.write("model.safetensors", "abcd");
  EXPECT_NE(model_fingerprint(folder.path()), before);
}

}  // namespace
}  // namespace octavo
