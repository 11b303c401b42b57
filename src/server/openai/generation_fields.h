// The fields that chat and completion requests share: sampling, limits, stops, streaming, output formats.
#pragma once

#include "server/openai/fields.h"
#include "server/openai/job.h"

namespace octavo {

// Everything but the number of tokens, log-probabilities and prompts.
void read_generation_fields(Fields& fields, const RequestContext& context, Job& job);
// response_format, guided_json, guided_choice, structured_outputs.
void read_output_format(Fields& fields, const RequestContext& context, Job& job);
// Limits of the whole job: context length per prompt, number of choices. Sets max_tokens; the room that a prompt leaves
// limits it further. `requested`: as asked for, 0 where it was not.
ApiResult<void> check_lengths(Job& job, int64_t requested, int64_t max_model_len);

}  // namespace octavo
