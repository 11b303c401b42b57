// The producers of one instruction set from its row functions (producer_rows.h).
#pragma once

#include "kernels/cpu/common/producer_rows.h"
#include "kernels/producers.h"

namespace octavo {

void run_rms_norm(const ProducerRows& rows, const RmsNormCall& call, ThreadPool& pool);
void run_quantize(const ProducerRows& rows, const QuantizeCall& call, ThreadPool& pool);
void run_silu_gate(const ProducerRows& rows, const SiluGateCall& call, ThreadPool& pool);
void run_rope_kv(const ProducerRows& rows, const RopeKvCall& call, ThreadPool& pool);

// Row r of an activation from its values, out of which the outlier channels are taken.
void quantize_in_place(const ProducerRows& rows, float* values, const Activation& output, int64_t r);

// Row r of an activation as a target for the row functions.
RowTarget row_target(const Activation& output, int64_t r);

}  // namespace octavo
