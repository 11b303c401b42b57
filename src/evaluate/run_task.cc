#include "evaluate/run_task.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "evaluate/answer_prompts.h"
#include "evaluate/model_facts.h"
#include "evaluate/perplexity.h"
#include "evaluate/score.h"
#include "evaluate/tasks/judge.h"

namespace octavo {
namespace {

constexpr size_t kItemsAtOnce = 32;  // scored together, then logged together

std::string context_of(const TaskItem& item, const TaskOptions& options) {
  return item.preamble + options.examples + item.prompt;
}

std::vector<std::string> continuations_of(const Task& task, const TaskItem& item) {
  if (task.kind == TaskKind::kContinuation) return {item.answer};
  std::vector<std::string> texts;
  for (const std::string& choice : item.choices) texts.push_back(task.delimiter + choice);
  return texts;
}

Json scored_record(const Task& task, size_t index, std::span<const ScoreSpan> spans,
                   std::span<const SpanScore> scores) {
  const TaskItem& item = task.items[index];
  Json record = {{"index", index}, {"id", item.id}};
  int64_t truncated = 0;
  for (const ScoreSpan& span : spans) truncated = std::max(truncated, span.truncated);
  if (truncated > 0) record["truncated"] = truncated;
  if (task.kind == TaskKind::kContinuation) {
    record["loglikelihood"] = scores[0].loglikelihood;
    record["greedy"] = scores[0].greedy;
    record["tokens"] = spans[0].scored;
    record["acc"] = scores[0].greedy ? 1 : 0;
    return record;
  }
  std::vector<double> sums;
  Json greedy = Json::array(), tokens = Json::array();
  for (size_t i = 0; i < scores.size(); ++i) {
    sums.push_back(scores[i].loglikelihood);
    greedy.push_back(scores[i].greedy);
    tokens.push_back(spans[i].scored);
  }
  const ChoiceVerdict verdict = judge_choices(sums, item.choices);
  record["loglikelihoods"] = sums;
  record["greedy"] = std::move(greedy);
  record["tokens"] = std::move(tokens);
  record["gold"] = item.gold;
  record["choice"] = verdict.by_sum;
  record["acc"] = verdict.by_sum == item.gold ? 1 : 0;
  record["acc_norm"] = verdict.by_characters == item.gold ? 1 : 0;
  record["acc_bytes"] = verdict.by_bytes == item.gold ? 1 : 0;
  return record;
}

Json answered_record(const Task& task, size_t index, int64_t truncated, const GeneratedAnswer& answer) {
  const TaskItem& item = task.items[index];
  Json record = {{"index", index},
                 {"id", item.id},
                 {"completion", answer.text},
                 {"finish_reason", answer.finish_reason},
                 {"tokens", answer.tokens.size()}};
  if (!answer.error.empty()) record["error"] = answer.error;
  if (truncated > 0) record["truncated"] = truncated;
  if (task.match == AnswerMatch::kGsm8k) {
    const std::string strict = strict_number(answer.text), flexible = flexible_number(answer.text);
    record["strict"] = strict;
    record["flexible"] = flexible;
    record["exact_match_strict"] = same_number(strict, item.answer) ? 1 : 0;
    record["exact_match_flexible"] = same_number(flexible, item.answer) ? 1 : 0;
  }
  if (task.match == AnswerMatch::kExact) record["exact_match"] = trim(answer.text) == trim(item.answer) ? 1 : 0;
  if (task.match == AnswerMatch::kContains)
    record["contains"] = answer.text.find(item.answer) != std::string::npos ? 1 : 0;
  return record;
}

// What a metric is called, and the field of the record it averages.
struct MetricRow {
  std::string_view name, field;
};
std::vector<MetricRow> metric_rows(const Task& task) {
  if (task.kind == TaskKind::kMultipleChoice)
    return {{"acc", "acc"}, {"acc_norm", "acc_norm"}, {"acc_bytes", "acc_bytes"}};
  if (task.kind == TaskKind::kContinuation) return {{"perplexity", "loglikelihood"}, {"acc", "acc"}};
  switch (task.match) {
    case AnswerMatch::kGsm8k:
      return {{"exact_match_strict", "exact_match_strict"}, {"exact_match_flexible", "exact_match_flexible"}};
    case AnswerMatch::kExact:
      return {{"exact_match", "exact_match"}};
    case AnswerMatch::kContains:
      return {{"contains", "contains"}};
    case AnswerMatch::kNone:
      break;
  }
  return {};
}

// A record from a file: has what will be read of it.
bool has_metrics(const Task& task, const Json& record) {
  if (!record.is_object() || !record.contains("index") || !record["index"].is_number_integer()) return false;
  for (const MetricRow& row : metric_rows(task)) {
    const auto value = record.find(row.field);
    if (value == record.end() || !value->is_number()) return false;
  }
  return true;
}

class TaskRun {
 public:
  TaskRun(Model& model, const Task& task, const TaskOptions& options, ItemLog* log,
          const std::function<void(int64_t, int64_t)>& progress)
      : model_(&model), task_(&task), options_(&options), log_(log), progress_(&progress) {
    result_.records.resize(task.items.size());
  }

  Result<TaskResult> run() {
    const auto start = std::chrono::steady_clock::now();
    OCTAVO_TRY(check_task(model_->config(), *task_));
    OCTAVO_TRY(take_done());
    std::vector<size_t> open;
    for (size_t i = 0; i < task_->items.size(); ++i)
      if (result_.records[i].is_null()) open.push_back(i);
    report();
    if (task_->kind == TaskKind::kGeneration) {
      OCTAVO_TRY(answer(open));
    } else {
      for (size_t begin = 0; begin < open.size(); begin += kItemsAtOnce)
        OCTAVO_TRY(score(std::span(open).subspan(begin, std::min(kItemsAtOnce, open.size() - begin))));
    }
    result_.metrics = task_metrics(*task_, result_.records);
    for (const Json& record : result_.records) {
      result_.truncated += record.contains("truncated") ? 1 : 0;
      result_.errors += record.contains("error") ? 1 : 0;
    }
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(result_);
  }

 private:
  void report() {
    if (*progress_) (*progress_)(done_, static_cast<int64_t>(task_->items.size()));
  }

  Result<void> take_done() {
    if (log_ == nullptr) return {};
    for (const Json& record : log_->done()) {
      const int64_t index = has_metrics(*task_, record) ? record["index"].get<int64_t>() : -1;
      if (index < 0 || index >= static_cast<int64_t>(task_->items.size())) return fail(log_->refuse(record));
      Json& slot = result_.records[static_cast<size_t>(index)];
      if (!slot.is_null()) continue;
      slot = record;
      ++done_;
      ++result_.resumed;
    }
    return {};
  }

  Result<void> keep(std::vector<Json> records) {
    if (log_ != nullptr) OCTAVO_TRY(log_->append(records));
    for (Json& record : records) {
      const auto index = record["index"].get<size_t>();
      result_.records[index] = std::move(record);
      ++done_;
    }
    report();
    return {};
  }

  Result<void> score(std::span<const size_t> items) {
    std::vector<ScoreSpan> spans;
    std::vector<size_t> first;  // of each item's spans
    for (const size_t index : items) {
      const TaskItem& item = task_->items[index];
      first.push_back(spans.size());
      const std::string context = context_of(item, *options_);
      for (const std::string& continuation : continuations_of(*task_, item)) {
        auto span = split_span(*model_, context, continuation, options_->add_special);
        if (!span) {
          Error error = std::move(span).error();
          error.where = fmt::format("task {}, item {}", task_->name, item.id);
          return fail(std::move(error));
        }
        spans.push_back(std::move(*span));
      }
    }
    first.push_back(spans.size());
    OCTAVO_ASSIGN(const std::vector<SpanScore> scores, score_spans(*model_, spans));
    std::vector<Json> records;
    for (size_t i = 0; i < items.size(); ++i) {
      const size_t count = first[i + 1] - first[i];
      records.push_back(scored_record(*task_, items[i], std::span(spans).subspan(first[i], count),
                                      std::span(scores).subspan(first[i], count)));
    }
    return keep(std::move(records));
  }

  // `truncated`: the tokens that the prompt lost.
  Result<GenerationRequest> request_of(const TaskItem& item, int64_t& truncated) const {
    GenerationRequest request{.max_tokens = task_->max_tokens, .stop = task_->stop};
    const Tokenizer& tokenizer = model_->tokenizer();
    if (uses_chat(*model_, *task_, *options_)) {
      const Json messages = Json::array({{{"role", "user"}, {"content", item.prompt + task_->chat_request}}});
      OCTAVO_ASSIGN(const std::string text, model_->render_chat(messages));
      request.prompt = tokenizer.encode(text, false);
    } else {
      request.prompt = tokenizer.encode(context_of(item, *options_), options_->add_special);
    }
    // As lm-eval: a prompt that leaves no room for the answer loses its beginning.
    const int64_t room = model_->config().context_length() - task_->max_tokens;
    truncated = std::max<int64_t>(0, static_cast<int64_t>(request.prompt.size()) - room);
    request.prompt.erase(request.prompt.begin(), request.prompt.begin() + truncated);
    return request;
  }

  Result<void> answer(const std::vector<size_t>& items) {
    std::vector<GenerationRequest> requests;
    std::vector<int64_t> truncated(items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      OCTAVO_ASSIGN(GenerationRequest request, request_of(task_->items[items[i]], truncated[i]));
      requests.push_back(std::move(request));
    }
    return answer_prompts(*model_, std::move(requests), [&](size_t i, const GeneratedAnswer& answer) -> Result<void> {
      std::vector<Json> records;
      records.push_back(answered_record(*task_, items[i], truncated[i], answer));
      return keep(std::move(records));
    });
  }

 public:
  static bool uses_chat(const Model& model, const Task& task, const TaskOptions& options) {
    return task.chat && !options.raw && options.examples.empty() && model.has_chat_template();
  }

 private:
  Model* model_;
  const Task* task_;
  const TaskOptions* options_;
  ItemLog* log_;
  const std::function<void(int64_t, int64_t)>* progress_;
  int64_t done_ = 0;
  TaskResult result_;
};

}  // namespace

Result<void> check_task(const ModelConfig& config, const Task& task) {
  if (task.kind != TaskKind::kGeneration || task.max_tokens < config.context_length()) return {};
  return fail({.what = "the answer leaves no room for a prompt in the model's context",
               .where = fmt::format("task {}, max_tokens", task.name),
               .found = fmt::format("{} tokens", task.max_tokens),
               .expected = fmt::format("fewer than {}", config.context_length()),
               .remedy = "fewer: \"max_tokens\" in the file of a set of your own, or evaluate's --max-tokens"});
}

Json task_identity(const Model& model, const Task& task, const TaskOptions& options) {
  std::vector<std::string> texts = {options.examples, task.delimiter};
  for (const TaskItem& item : task.items) {
    for (const std::string* text : {&item.id, &item.preamble, &item.prompt, &item.answer}) texts.push_back(*text);
    for (const std::string& choice : item.choices) texts.push_back(choice);
    texts.push_back(fmt::format("{}", item.gold));
  }
  for (const std::string& stop : task.stop) texts.push_back(stop);
  return {{"octavo", "finished items"},
          {"version", options.version},
          {"model", model.checkpoint().path().string()},
          {"model_files", model_fingerprint(model.checkpoint().path())},
          {"task", task.name},
          {"kind", static_cast<int>(task.kind)},
          {"match", static_cast<int>(task.match)},
          {"items", task.items.size()},
          {"data", text_hash(texts)},
          {"max_tokens", task.max_tokens},
          {"chat", TaskRun::uses_chat(model, task, options)},
          {"add_special", options.add_special},
          {"scheme", model.plan().scheme},
          {"plan", plan_fingerprint(model)},
          {"isa", isa_name(model.isa())}};
}

Result<TaskResult> run_task(Model& model, const Task& task, const TaskOptions& options, ItemLog* log,
                            const std::function<void(int64_t, int64_t)>& progress) {
  return TaskRun(model, task, options, log, progress).run();
}

std::vector<TaskMetric> task_metrics(const Task& task, const std::vector<Json>& records) {
  std::vector<TaskMetric> metrics;
  for (const MetricRow& row : metric_rows(task)) {
    std::vector<double> values;
    values.reserve(records.size());
    for (const Json& record : records) values.push_back(record.at(row.field).get<double>());
    const MeanError mean = mean_error(values);
    TaskMetric metric{std::string(row.name), mean.mean, mean.standard_error};
    if (row.name == "perplexity") {
      metric.value = std::exp(-mean.mean);
      metric.standard_error = metric.value * mean.standard_error;
    }
    metrics.push_back(std::move(metric));
  }
  return metrics;
}

}  // namespace octavo
