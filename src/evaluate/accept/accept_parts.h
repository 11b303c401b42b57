// The parts of an acceptance run, each measured into its own piece of the report.
#pragma once

#include "evaluate/accept/accept.h"
#include "evaluate/run_task.h"

namespace octavo {

// A way from the base to the candidate; the base first, the candidate last.
struct LadderRung {
  std::string title, formats;
  ModelSpec spec;
  std::string why_not;  // where it is not run
  std::string part;     // of the error budget, whose figures it shares; empty: the base
};
// weights, + activations, + KV cache: the steps that change something. Models of different layers have no steps between
// them: base and candidate alone.
Result<std::vector<LadderRung>> ladder_of(const ModelSpec& base, const ModelSpec& candidate);

// Memory of a rung, and its speed beside the base's: both models loaded, taking turns, medians over the rounds; the
// ratios are medians of the rounds' own. {"memory": {...}, "base_memory": {...}, "speed": ..., "base_speed": ...,
// "ratios": ...}, the last three only where rounds are asked for. Decode steps follow the prompt, as those of a request
// do. `batch`: also the output tokens per second of so many sequences together; 0: not.
Result<Json> measure_rung(Model& base, const ModelSpec& rung, const SpeedOptions& options, int64_t batch,
                          const std::function<void(int64_t done, int64_t total)>& progress);

// One task on both: metrics with the standard error of the paired difference, and the items that changed.
Json paired_task(const Task& task, const TaskResult& base, const TaskResult& candidate);
// The metric that the gate takes: acc, exact_match_flexible, exact_match, contains; empty where nothing is scored.
std::string headline_metric(const Task& task);

// needle_cells() of two models put together.
Json paired_needles(const NeedleOptions& options, const Json& base, const Json& candidate);

// The figures that gates take, from the report's parts: "measured".
Json measured_figures(const Json& report);

// What a report begins with: version, models and their plans, machine, settings.
Json report_heading(const AcceptOptions& options, const Model& base, const PrecisionPlan& candidate);
// All that the results of a run depend on, the models' files (names, sizes, times) among it.
Json run_identity(const AcceptOptions& options, const Model& base, const PlannedCheckpoint& candidate,
                  const std::string& text, const NeedleOptions& needle);

}  // namespace octavo
