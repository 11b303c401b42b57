// Running a task: items scored or answered, judged, counted; what is done is kept in a log.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/model.h"
#include "evaluate/item_log.h"
#include "evaluate/tasks/task.h"

namespace octavo {

struct TaskOptions {
  bool add_special = false;  // with what the tokenizer's post-processor adds (BOS); lm-eval's default is without
  bool raw = false;          // never through the chat template
  std::string examples;      // solved examples before every prompt (few_shot_examples); implies raw
  std::string version;       // of the program: items of another one are not taken over
};

struct TaskMetric {
  std::string name;  // "acc", "acc_norm" (per code point), "acc_bytes", "perplexity", "exact_match_strict", ...
  double value = 0, standard_error = 0;
};

// Records are JSON objects with index, id, what was measured, and each metric's value of the item:
//   multiple choice: loglikelihoods, greedy, tokens (of each choice), gold, choice, acc, acc_norm, acc_bytes
//   continuation:    loglikelihood, greedy, tokens, acc
//   generation:      completion, finish_reason, tokens, and what its match gives; "error" where it was refused
//   all, where a prompt was too long: truncated, the tokens that it lost
struct TaskResult {
  std::vector<TaskMetric> metrics;
  std::vector<Json> records;  // in the order of the items
  int64_t resumed = 0;        // of them, found in the log
  int64_t truncated = 0;      // whose prompt lost its beginning: with the answer it is longer than the context
  int64_t errors = 0;         // whose prompt was refused: they count as wrong
  double seconds = 0;
};

// Error: a generated answer that leaves no room for a prompt.
Result<void> check_task(const ModelConfig& config, const Task& task);

// What a log of this run says of itself.
Json task_identity(const Model& model, const Task& task, const TaskOptions& options);

// Items are measured alone in effect: no result depends on the others, on --limit or on where a run was interrupted.
// `log` may be null.
Result<TaskResult> run_task(Model& model, const Task& task, const TaskOptions& options, ItemLog* log,
                            const std::function<void(int64_t done, int64_t total)>& progress = {});

// Means and standard errors over records; perplexity: exp(-mean log-likelihood), its error by the delta method.
std::vector<TaskMetric> task_metrics(const Task& task, const std::vector<Json>& records);

}  // namespace octavo
