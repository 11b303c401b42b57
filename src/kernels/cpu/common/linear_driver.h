// Runs a linear layer with the functions of one instruction set: activations widened, outputs shared out over threads.
#pragma once

#include "kernels/cpu/common/linear_task.h"
#include "kernels/linear.h"

namespace octavo {

// The split over threads and blocks never touches the order of a sum.
void run_linear(const LinearOps& ops, const LinearCall& call, ThreadPool& pool, Scratch& scratch);

}  // namespace octavo
