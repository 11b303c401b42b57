// /v1/chat/completions: messages, tools and their template variables.
#include <fmt/format.h>

#include <cmath>

#include "server/openai/generation_fields.h"
#include "server/openai/json_text.h"

namespace octavo {
namespace {

constexpr size_t kMaxMessages = 100'000;

ApiError bad_message(size_t i, std::string_view member, std::string message) {
  const std::string param = member.empty() ? fmt::format("messages[{}]", i) : fmt::format("messages[{}].{}", i, member);
  return {.message = fmt::format("'{}' {}", param, message), .param = param};
}

// Templates for text take a string: the parts, a line each.
ApiResult<std::string> content_text(const Json& content, size_t i) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return refuse(bad_message(i, "content", "must be a string or a list of parts"));
  std::string text;
  bool first = true;
  for (const Json& part : content) {
    std::string_view piece;
    if (part.is_string()) {
      piece = part.get_ref<const std::string&>();
    } else if (part.is_object() && part.value("type", Json()) == Json("text") &&
               part.value("text", Json()).is_string()) {
      piece = part.at("text").get_ref<const std::string&>();
    } else {
      return refuse(bad_message(i, "content",
                                "may only hold parts {\"type\": \"text\", \"text\": \"...\"}: this "
                                "server takes text alone"));
    }
    if (!std::exchange(first, false)) text += '\n';
    text += piece;
  }
  return text;
}

// Clients send arguments as JSON text; templates expect the object.
ApiResult<Json> tool_calls_for_template(const Json& calls, size_t i) {
  if (!calls.is_array()) return refuse(bad_message(i, "tool_calls", "must be a list"));
  Json out = Json::array();
  for (Json call : calls) {
    if (!call.is_object() || !call.value("function", Json()).is_object() ||
        !call["function"].value("name", Json()).is_string())
      return refuse(bad_message(i, "tool_calls", "must hold {\"function\": {\"name\", \"arguments\"}}"));
    Json& arguments = call["function"]["arguments"];
    if (arguments.is_string()) {
      if (Result<Json> parsed = parse_json(arguments.get_ref<const std::string&>(), "arguments"))
        arguments = std::move(*parsed);
    } else if (arguments.is_null()) {
      arguments = Json::object();
    }
    out.push_back(std::move(call));
  }
  return out;
}

ApiResult<Json> template_messages(const Json& messages) {
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) return refuse(bad_message(i, "", "must be an object"));
    Json message = messages[i];
    if (!message.value("role", Json()).is_string() || message["role"].get_ref<const std::string&>().empty())
      return refuse(bad_message(i, "role", "must be a string such as \"user\""));
    OCTAVO_API_ASSIGN(message["content"], content_text(message.value("content", Json()), i));
    if (message.contains("tool_calls")) {
      if (message["tool_calls"].is_null()) {
        message.erase("tool_calls");
      } else {
        OCTAVO_API_ASSIGN(message["tool_calls"], tool_calls_for_template(message["tool_calls"], i));
      }
    }
    out.push_back(std::move(message));
  }
  return out;
}

// Name and parameters of every tool, in order.
void read_tools(Fields& fields, Job& job, Json& parameters) {
  const Json* tools = fields.array("tools");
  if (tools == nullptr) return;
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const Json function = tool.is_object() ? tool.value("function", Json()) : Json();
    if (!function.is_object() || tool.value("type", Json("function")) != Json("function") ||
        !function.value("name", Json()).is_string())
      return fields.fail(
          fmt::format("tools[{}]", i),
          fmt::format("'tools[{}]' must be {{\"type\": \"function\", \"function\": {{\"name\", ...}}}}", i));
    job.tool_names.push_back(function["name"].get<std::string>());
    const Json given = function.value("parameters", Json());
    parameters.push_back(given.is_null() ? Json{{"type", "object"}, {"properties", Json::object()}} : given);
  }
}

void read_tool_choice(Fields& fields, Job& job) {
  const Json* choice = fields.get("tool_choice");
  const bool any = !job.tool_names.empty();
  job.tool_choice = any ? ToolChoice::kAuto : ToolChoice::kNone;
  if (choice == nullptr || *choice == Json("auto")) return;
  if (*choice == Json("none")) {
    job.tool_choice = ToolChoice::kNone;
  } else if (*choice == Json("required")) {
    if (!any) return fields.fail("tool_choice", "'tool_choice' is \"required\", but there are no 'tools'");
    job.tool_choice = ToolChoice::kRequired;
  } else {
    const Json function = choice->is_object() ? choice->value("function", Json()) : Json();
    const Json name = function.is_object() ? function.value("name", Json()) : Json();
    if (!name.is_string())
      return fields.fail("tool_choice",
                         "'tool_choice' must be none, auto, required, or a function's name in "
                         "{\"type\": \"function\", \"function\": {\"name\": ...}}");
    if (std::find(job.tool_names.begin(), job.tool_names.end(), name.get<std::string>()) == job.tool_names.end())
      return fields.fail("tool_choice", "'tool_choice' names a function that is not among the 'tools'");
    job.tool_choice = ToolChoice::kNamed;
  }
}

// A forced call is a constrained answer: the arguments of the named function, or {"name", "arguments"} of any.
void constrain_tools(Fields& fields, const RequestContext& context, const Json& parameters, Job& job) {
  if (job.tool_choice != ToolChoice::kRequired && job.tool_choice != ToolChoice::kNamed) return;
  const auto compiled = [&] {
    if (job.tool_choice == ToolChoice::kRequired) return context.constraints.calls(job.tool_names, parameters);
    const auto name = fields.get("tool_choice")->at("function").at("name").get<std::string>();
    const auto found = std::find(job.tool_names.begin(), job.tool_names.end(), name) - job.tool_names.begin();
    job.tool_names = {name};
    return context.constraints.json_schema(parameters[static_cast<size_t>(found)]);
  }();
  if (compiled) {
    job.constraint = *compiled;
    return;
  }
  ApiError error = compiled.error();
  error.param = "tools";
  fields.fail(std::move(error));
}

void read_chat_logprobs(Fields& fields, Job& job) {
  job.logprobs = fields.boolean("logprobs").value_or(false);
  const std::optional<int64_t> top = fields.integer("top_logprobs", 0, 20);
  if (top && *top > 0 && !job.logprobs)
    fields.fail("top_logprobs", "'top_logprobs' needs 'logprobs': true", "invalid_value");
  job.shared.num_logprobs = job.logprobs ? static_cast<int>(top.value_or(0)) : -1;
}

void refuse_unsupported_chat(Fields& fields) {
  fields.unsupported("echo", false);
  fields.unsupported("continue_final_message", false);
  fields.unsupported("chat_template", nullptr);
  fields.unsupported("functions", Json::array());
  fields.unsupported("function_call", "none");
}

}  // namespace

ApiResult<std::vector<TokenId>> chat_tokens(const Json& body, const TextEngine& engine, bool any_length) {
  Fields fields(body);
  const Json* messages = fields.array("messages");
  if (messages == nullptr) fields.fail("messages", "'messages' is missing", "missing_required_parameter");
  if (messages != nullptr && messages->empty()) fields.fail("messages", "'messages' must not be empty");
  if (messages != nullptr && messages->size() > kMaxMessages)
    fields.fail("messages", fmt::format("'messages' may hold at most {} messages", kMaxMessages));
  Json variables = Json::object();
  if (const Json* kwargs = fields.object("chat_template_kwargs")) variables = *kwargs;
  variables["add_generation_prompt"] = fields.boolean("add_generation_prompt").value_or(true);
  const Json* tools = fields.array("tools");
  const Json* choice = fields.get("tool_choice");
  if (tools != nullptr && !tools->empty() && (choice == nullptr || *choice != Json("none")))
    variables["tools"] = *tools;
  if (const Json* documents = fields.array("documents")) variables["documents"] = *documents;
  const bool add_special = fields.boolean("add_special_tokens").value_or(false);
  if (fields.error()) return refuse(*fields.error());
  OCTAVO_API_ASSIGN(const Json converted, template_messages(*messages));
  const Result<std::string> rendered = engine.render_chat(converted, variables);
  if (!rendered) {
    ApiError error = api_error_of(rendered.error(), 400);
    error.param = "messages";
    return refuse(std::move(error));
  }
  if (!any_length) OCTAVO_API_TRY(check_text_size(*rendered, engine, "messages"));
  return text_prompt(*rendered, add_special, engine.tokenizer()).tokens;
}

ApiResult<Job> parse_chat_request(const Json& body, const RequestContext& context) {
  Job job{.chat = true};
  OCTAVO_API_ASSIGN(job.model, checked_model(body, context.model_names));
  Fields fields(body);
  Json parameters = Json::array();
  read_tools(fields, job, parameters);
  if (!fields.error()) read_tool_choice(fields, job);
  if (!fields.error()) constrain_tools(fields, context, parameters, job);
  job.one_call = !fields.boolean("parallel_tool_calls").value_or(true);
  if (!fields.error()) read_generation_fields(fields, context, job);
  read_chat_logprobs(fields, job);
  refuse_unsupported_chat(fields);
  const auto old_name = fields.integer("max_tokens", 1);
  const auto new_name = fields.integer("max_completion_tokens", 1);
  if (fields.error()) return refuse(*fields.error());
  job.prompts.resize(1);
  OCTAVO_API_ASSIGN(job.prompts[0].tokens, chat_tokens(body, context.engine));
  OCTAVO_API_TRY(check_lengths(job, new_name.value_or(old_name.value_or(0)), context.engine.max_model_len()));
  return job;
}

}  // namespace octavo
