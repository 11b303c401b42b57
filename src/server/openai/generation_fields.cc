#include "server/openai/generation_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace octavo {
namespace {

constexpr size_t kMaxStops = 16, kMaxStopBytes = 1024, kMaxChoices = 1024, kMaxBias = 4096;
constexpr int64_t kMaxTopK = std::numeric_limits<int32_t>::max();

std::optional<TokenId> token_of(const Json& json, size_t vocab_size) {
  const std::optional<int64_t> id = whole_number(json);
  if (!id || *id < 0 || *id >= static_cast<int64_t>(vocab_size)) return std::nullopt;
  return static_cast<TokenId>(*id);
}

void read_logit_bias(Fields& fields, size_t vocab_size, SamplingParams& sampling) {
  const Json* biases = fields.object("logit_bias");
  if (biases == nullptr) return;
  if (biases->size() > kMaxBias)
    return fields.fail("logit_bias", fmt::format("'logit_bias' may name at most {} tokens", kMaxBias));
  for (const auto& [key, value] : biases->items()) {
    int64_t id = -1;
    const char* end = key.data() + key.size();
    const auto [parsed, status] = std::from_chars(key.data(), end, id);
    if (status != std::errc() || parsed != end || id < 0 || id >= static_cast<int64_t>(vocab_size))
      return fields.fail("logit_bias", fmt::format("'logit_bias' keys must be token ids below {}, found \"{}\"",
                                                   vocab_size, key.substr(0, 64)));
    if (!value.is_number() || !(value.get<double>() >= -100.0 && value.get<double>() <= 100.0))
      return fields.fail("logit_bias", "'logit_bias' values must be numbers between -100 and 100");
    sampling.logit_bias[static_cast<TokenId>(id)] = value.get<float>();
  }
}

void read_sampling(Fields& fields, const TextEngine& engine, SamplingParams& sampling) {
  const SamplingDefaults defaults = engine.sampling_defaults();
  sampling.temperature = static_cast<float>(fields.number("temperature", 0.0, 2.0).value_or(defaults.temperature));
  sampling.top_p = static_cast<float>(fields.number("top_p", 0.0, 1.0).value_or(defaults.top_p));
  if (fields.get("top_p") != nullptr && sampling.top_p <= 0.0f)
    fields.fail("top_p", "'top_p' must be greater than 0", "invalid_value");
  sampling.min_p = static_cast<float>(fields.number("min_p", 0.0, 1.0).value_or(defaults.min_p));
  sampling.top_k = std::max<int64_t>(0, fields.integer("top_k", -1, kMaxTopK).value_or(defaults.top_k));
  sampling.repetition_penalty =
      static_cast<float>(fields.number("repetition_penalty", 0.01, 100.0).value_or(defaults.repetition_penalty));
  sampling.presence_penalty = static_cast<float>(fields.number("presence_penalty", -2.0, 2.0).value_or(0.0));
  sampling.frequency_penalty = static_cast<float>(fields.number("frequency_penalty", -2.0, 2.0).value_or(0.0));
  sampling.seed = fields.seed("seed");
  read_logit_bias(fields, engine.tokenizer().vocab_size(), sampling);
}

void read_stop(Fields& fields, std::vector<std::string>& stops) {
  const Json* stop = fields.get("stop");
  if (stop == nullptr) return;
  const auto add = [&](const Json& text) {
    if (!text.is_string()) return fields.fail("stop", "'stop' must be a string or a list of strings", "invalid_type");
    const auto& value = text.get_ref<const std::string&>();
    if (value.empty() || value.size() > kMaxStopBytes)
      return fields.fail("stop", fmt::format("a stop string must have 1 to {} bytes", kMaxStopBytes), "invalid_value");
    stops.push_back(value);
  };
  if (!stop->is_array()) return add(*stop);
  if (stop->size() > kMaxStops)
    return fields.fail("stop", fmt::format("'stop' may hold at most {} strings", kMaxStops), "invalid_value");
  for (const Json& text : *stop) add(text);
}

void read_stop_tokens(Fields& fields, size_t vocab_size, std::vector<TokenId>& ids) {
  const Json* list = fields.array("stop_token_ids");
  if (list == nullptr) return;
  for (const Json& json : *list) {
    const std::optional<TokenId> id = token_of(json, vocab_size);
    if (!id)
      return fields.fail("stop_token_ids", fmt::format("'stop_token_ids' must be token ids below {}", vocab_size),
                         "invalid_value");
    ids.push_back(*id);
  }
}

void read_streaming(Fields& fields, Job& job) {
  job.stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.object("stream_options");
  if (options == nullptr) return;
  if (!job.stream) fields.fail("stream_options", "'stream_options' needs 'stream': true", "invalid_value");
  Fields inner(*options, "stream_options.");
  job.include_usage = inner.boolean("include_usage").value_or(false);
  job.continuous_usage = inner.boolean("continuous_usage_stats").value_or(false) && job.include_usage;
  if (inner.error()) fields.fail(*inner.error());
}

// Fields of other servers that would change the answer: better refused than dropped.
void refuse_unsupported(Fields& fields) {
  fields.unsupported("use_beam_search", false);
  fields.unsupported("typical_p", 1.0);
  fields.unsupported("guided_regex", nullptr);
  fields.unsupported("guided_grammar", nullptr);
  fields.unsupported("skip_special_tokens", true);
  fields.unsupported("truncate_prompt_tokens", nullptr);
  fields.unsupported("prompt_logprobs", nullptr);
  fields.unsupported("bad_words", Json::array());
  fields.unsupported("allowed_token_ids", nullptr);
  fields.unsupported("logits_processors", nullptr);
}

// The fields that ask for a format, by name.
std::vector<std::string> output_formats(const Fields& fields) {
  std::vector<std::string> names;
  const Json* format = fields.get("response_format");
  if (format != nullptr && (!format->is_object() || format->value("type", Json("text")) != Json("text")))
    names.emplace_back("response_format");
  for (const char* name : {"guided_json", "guided_choice"})
    if (fields.get(name) != nullptr) names.emplace_back(name);
  const Json* outputs = fields.get("structured_outputs");
  if (outputs == nullptr || !outputs->is_object()) return names;
  for (const char* name : {"json", "choice", "json_object"})
    if (const auto given = outputs->find(name); given != outputs->end() && !given->is_null() && *given != Json(false))
      names.push_back(std::string("structured_outputs.") + name);
  return names;
}

}  // namespace

void read_generation_fields(Fields& fields, const RequestContext& context, Job& job) {
  const size_t vocab_size = context.engine.tokenizer().vocab_size();
  read_sampling(fields, context.engine, job.shared.sampling);
  read_stop(fields, job.shared.stop);
  read_stop_tokens(fields, vocab_size, job.shared.stop_token_ids);
  read_streaming(fields, job);
  refuse_unsupported(fields);
  job.n = fields.integer("n", 1, 128).value_or(1);
  if (const auto best_of = fields.integer("best_of", 1); best_of && *best_of != job.n)
    fields.fail("best_of", "'best_of' is not supported beside 'n'", "unsupported_parameter");
  job.shared.min_tokens = fields.integer("min_tokens", 0).value_or(0);
  job.shared.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  job.include_stop = fields.boolean("include_stop_str_in_output").value_or(false);
  job.shared.cache_salt = fields.text("cache_salt").value_or("");
  job.tokens_as_ids = fields.boolean("return_tokens_as_token_ids").value_or(false);
  job.token_ids = fields.boolean("return_token_ids").value_or(false);
  read_output_format(fields, context, job);
  if (job.constraint != nullptr && (job.shared.ignore_eos || job.shared.min_tokens > 0))
    fields.fail(job.shared.ignore_eos ? "ignore_eos" : "min_tokens",
                "a constrained answer ends where its format does: leave out 'ignore_eos' and 'min_tokens'");
}

void read_output_format(Fields& fields, const RequestContext& context, Job& job) {
  const std::vector<std::string> formats = output_formats(fields);
  if (!formats.empty() && job.constraint != nullptr)
    return fields.fail(formats[0], fmt::format("'{}' cannot be had beside a forced tool call", formats[0]));
  if (formats.size() > 1)
    return fields.fail(formats[1],
                       fmt::format("'{}' cannot be had beside '{}': an answer has one format", formats[1], formats[0]));
  const auto take = [&](std::string_view name, ApiResult<std::shared_ptr<const Constraint>> compiled) {
    if (!compiled) {
      ApiError error = compiled.error();
      error.param = name;
      return fields.fail(std::move(error));
    }
    job.constraint = *compiled;
  };
  if (const Json* format = fields.object("response_format")) {
    Fields inner(*format, "response_format.");
    const std::string type = inner.text("type").value_or("text");
    if (type == "json_object") {
      take("response_format", context.constraints.json_object());
    } else if (type == "json_schema") {
      const Json* named = inner.object("json_schema");
      const Json* schema = named == nullptr ? nullptr : Fields(*named).get("schema");
      if (schema == nullptr)
        inner.fail("json_schema", "'response_format.json_schema.schema' is missing");
      else
        take("response_format", context.constraints.json_schema(*schema));
    } else if (type != "text") {
      inner.fail("type", "'response_format.type' must be text, json_object or json_schema", "invalid_value");
    }
    if (inner.error()) fields.fail(*inner.error());
  }
  if (const Json* schema = fields.get("guided_json")) take("guided_json", context.constraints.json_schema(*schema));
  if (const Json* choices = fields.array("guided_choice")) take("guided_choice", context.constraints.choice(*choices));
  if (const Json* outputs = fields.object("structured_outputs")) {
    Fields inner(*outputs, "structured_outputs.");
    if (const Json* schema = inner.get("json")) take("structured_outputs", context.constraints.json_schema(*schema));
    if (const Json* choices = inner.array("choice")) take("structured_outputs", context.constraints.choice(*choices));
    if (inner.boolean("json_object").value_or(false)) take("structured_outputs", context.constraints.json_object());
    inner.unsupported("structural_tag", nullptr);
    inner.unsupported("whitespace_pattern", nullptr);
    inner.unsupported("disable_any_whitespace", false);
    inner.unsupported("disable_additional_properties", false);
    inner.unsupported("regex", nullptr);
    inner.unsupported("grammar", nullptr);
    if (inner.error()) fields.fail(*inner.error());
  }
}

ApiResult<void> check_lengths(Job& job, int64_t requested, int64_t max_model_len) {
  if (job.num_choices() > kMaxChoices)
    return refuse({.message = fmt::format("prompts x n must be at most {}, found {}", kMaxChoices, job.num_choices()),
                   .param = job.chat ? "n" : "prompt"});
  const std::string name = job.chat ? "messages" : "prompt";
  for (size_t i = 0; i < job.prompts.size(); ++i) {
    const auto tokens = static_cast<int64_t>(job.prompts[i].tokens.size());
    const std::string param = job.prompts.size() == 1 ? name : fmt::format("{}[{}]", name, i);
    if (tokens == 0) return refuse({.message = fmt::format("'{}' is empty: it has no tokens", param), .param = param});
    if (tokens + (job.prompt_only ? 0 : 1) > max_model_len) {
      const std::string asked =
          requested > 0 ? fmt::format("you requested {} tokens ({} in the {}, {} in the completion)",
                                      tokens + std::min(requested, std::numeric_limits<int64_t>::max() - tokens),
                                      tokens, name, requested)
                        : fmt::format("your {} resulted in {} tokens", name, tokens);
      return refuse({.message = fmt::format("This model's maximum context length is {} tokens. However, {}. Please "
                                            "reduce the length of the {}{}.",
                                            max_model_len, asked, name, requested > 0 ? " or completion" : ""),
                     .param = param,
                     .code = "context_length_exceeded"});
    }
  }
  if (requested > 0 && job.shared.min_tokens > requested)
    return refuse({.message = fmt::format("'min_tokens' ({}) is more than the most tokens allowed ({})",
                                          job.shared.min_tokens, requested),
                   .param = "min_tokens"});
  job.shared.max_tokens = requested > 0 ? requested : max_model_len;
  return {};
}

}  // namespace octavo
