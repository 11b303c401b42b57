#include "loadgen/server_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/json.h"
#include "loadgen/reply_reader.h"
#include "loadgen/workload.h"

namespace octavo {
namespace {

Result<Json> fetch_json(const ServerAddress& server, const std::string& path, const std::string* body,
                        const ConnectionOptions& options) {
  OCTAVO_ASSIGN(const FetchedReply reply, fetch(server, path, body, options));
  const std::string where = server.text() + path;
  if (reply.status != 200)
    return fail({.what = fmt::format("the server answers with HTTP {}", reply.status),
                 .where = where,
                 .found = error_message_of(reply.body),
                 .remedy = reply.status == 401 || reply.status == 403 ? "give its key with --api-key" : ""});
  return parse_json(reply.body, where);
}

Result<std::string> first_model(const ServerAddress& server, const ConnectionOptions& options) {
  OCTAVO_ASSIGN(const Json json, fetch_json(server, "/v1/models", nullptr, options));
  if (json.is_object() && json.contains("data") && json["data"].is_array())
    for (const Json& model : json["data"])
      if (model.is_object() && model.contains("id") && model["id"].is_string()) return model["id"].get<std::string>();
  return fail(
      {.what = "the server lists no model", .where = server.text() + "/v1/models", .remedy = "name it with --model"});
}

// Whether an Octavo or vLLM server says of itself that it still loads.
bool loading(const ServerAddress& server, const ConnectionOptions& options) {
  const Result<FetchedReply> health = fetch(server, "/health", nullptr, options);
  return health && health->status == 503;
}

}  // namespace

Result<std::string> served_model(const ServerAddress& server, const ConnectionOptions& options, double wait_seconds) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait_seconds));
  while (true) {
    Result<std::string> model = first_model(server, options);
    if (model && loading(server, options))
      model = fail({.what = "the server is still loading its model",
                    .where = server.text(),
                    .remedy = "wait for it with --ready-timeout SECONDS"});
    if (model || Clock::now() >= deadline) return model;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

Result<std::vector<int64_t>> plain_token_ids(const ServerAddress& server, const std::string& model,
                                             const ConnectionOptions& options) {
  const std::string text = plain_text();
  // "prompt" is what Octavo and vLLM read, "content" what llama.cpp does.
  const Json body = {{"model", model}, {"prompt", text}, {"content", text}, {"add_special_tokens", false}};
  const std::string dumped = body.dump();
  Result<Json> reply = fetch_json(server, "/tokenize", &dumped, options);
  std::vector<int64_t> ids;
  if (reply && reply->is_object() && reply->contains("tokens") && (*reply)["tokens"].is_array())
    for (const Json& id : (*reply)["tokens"])
      if (id.is_number_integer() && id.get<int64_t>() >= 0) ids.push_back(id.get<int64_t>());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.size() < 2)
    return fail(
        {.what = "the server does not tell its token ids",
         .where = server.text() + "/tokenize",
         .found = reply ? "no list of tokens" : reply.error().what + ": " + reply.error().found,
         .remedy = "give --vocab-size N for ids below N, or --endpoint /v1/chat/completions for prompts of text"});
  return ids;
}

}  // namespace octavo
