// Dataflow: every operation of a layer with its input and output format and the kernel that runs it.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "kernels/isa.h"
#include "precision/plan.h"

namespace octavo {

struct Operation {
  std::string name;                  // "q_proj", "rms_norm", "attention"
  std::string input, output;         // formats
  std::string weight;                // format, or empty
  std::string kernel;                // the row that runs it
  std::vector<std::string> refused;  // rows above it and why they refused: the fallback, said
};

// The operations of one layer (and of the head when layer is -1), from the plan alone: nothing is loaded.
std::vector<Operation> layer_dataflow(const ModelConfig& config, const PrecisionPlan& plan, int layer, Isa isa);

// Memory of a model under a plan, before anything is loaded.
struct MemoryPlan {
  int64_t weight_bytes = 0;     // linear layers, head included: codes and scales
  int64_t embedding_bytes = 0;  // mapped from the checkpoint
  int64_t norm_bytes = 0;
  double kv_bytes_per_token = 0;
  int64_t scratch_bytes = 0;  // of one prefill chunk of `chunk` tokens
};
MemoryPlan memory_plan(const ModelConfig& config, const PrecisionPlan& plan, int64_t embedding_bytes, int64_t chunk);

}  // namespace octavo
