// Acceptance: everything that the report on a candidate says, measured into one JSON document.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "evaluate/error_budget.h"
#include "evaluate/needle.h"
#include "evaluate/speed.h"
#include "evaluate/tasks/task.h"

namespace octavo {

struct AcceptTask {
  std::string name;
  std::filesystem::path data;
};

struct AcceptOptions {
  ModelSpec base, candidate;
  std::filesystem::path text;  // empty: neither perplexity nor needles
  PerplexityOptions windows;
  SpeedOptions speed;  // repeat: rounds in which base and candidate take turns; 0: no speed
  int64_t batch = 8;   // sequences together, whose output tokens per second are the throughput
  std::vector<AcceptTask> tasks;
  TaskSelection selection;
  NeedleOptions needle{.lengths = {}, .flags = "--needle-"};  // no lengths: of 1024 to 8192 what context and text hold
  std::filesystem::path sensitivity;                          // empty: none
  std::filesystem::path unfinished;  // folder for what is done of a run: gone on with after a kill
  std::string version, command;      // of the program; what was typed
};

using AcceptProgress = std::function<void(std::string_view stage, int64_t done, int64_t total)>;

// The report without its gates (judge() adds them); the document is described in docs/accept.md. What the candidate
// makes impossible (logits that are not finite, a format without a fast kernel) is a "why_not" in its place. Error:
// what the flags ask for cannot be had (files, lengths, another run in the folder), found before anything long is
// measured; a model that does not load.
Result<Json> measure_acceptance(const AcceptOptions& options, const AcceptProgress& progress = {});

// Takes away what a finished run left in its folder for going on, and the folder where nothing else lies in it.
void remove_unfinished(const AcceptOptions& options);

}  // namespace octavo
