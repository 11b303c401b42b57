// Api: the server's paths. Routes requests, checks keys and origins, parses on a second thread, replies.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/http/exchange.h"
#include "server/metrics.h"
#include "server/openai/job.h"
#include "server/openai/reply.h"
#include "server/text_engine.h"

namespace octavo {

struct ApiOptions {
  std::vector<std::string> model_names;   // at least one
  size_t names_told = 1;                  // of these, by /v1/models; the others are understood
  std::string api_key;                    // empty: none
  std::vector<std::string> cors_origins;  // "*": any
  bool local_only = false;                // refuse requests that a browser sent to another name than this machine's
  std::string version;
  std::string page;  // of "/"
};

// What a client is told of an exception, 500; what was thrown goes to stderr.
ApiError unexpected_error(const std::exception& exception);

// Runs a task later, on a thread of its own choice.
using Post = std::function<void(std::function<void()>)>;

class Api {
 public:
  // `network`: the thread on which handle() is called; `worker`: where requests are parsed.
  Api(ApiOptions options, Post network, Post worker);
  ~Api();

  void handle(HttpRequest request, const std::shared_ptr<Exchange>& exchange);

  // Network thread.
  void set_progress(double loaded) { loaded_ = loaded; }  // 0 to 1
  void set_engine(TextEngine* engine);                    // from now on it is ready; must outlive all requests
  void set_draining() { draining_ = true; }
  // Ends every request at work with an error.
  void abandon_all();
  // What happened since the last call, in one line; empty for nothing.
  std::string log_line(double seconds);

 private:
  using Handler = void (Api::*)(const HttpRequest&, const std::shared_ptr<Exchange>&, HttpHeaders);
  struct Route {
    std::string_view method, path;
    Handler handler;
    bool open;         // needs no key
    bool needs_model;  // 503 until the engine is there
    // A path that ends with a slash stands for all that follow.
    bool matches(std::string_view wanted) const {
      return path == wanted || (path.size() > 1 && path.ends_with('/') && wanted.starts_with(path));
    }
  };
  static const std::vector<Route>& routes();

  HttpHeaders headers_for(const HttpRequest& request) const;
  bool origin_allowed(const HttpRequest& request) const;
  bool host_allowed(const HttpRequest& request) const;
  bool key_matches(const HttpRequest& request) const;
  void refuse(const std::shared_ptr<Exchange>& exchange, const ApiError& error, HttpHeaders headers);

  void get_health(const HttpRequest&, const std::shared_ptr<Exchange>&, HttpHeaders);
  void get_live(const HttpRequest&, const std::shared_ptr<Exchange>&, HttpHeaders);
  void get_version(const HttpRequest&, const std::shared_ptr<Exchange>&, HttpHeaders);
  void get_metrics(const HttpRequest&, const std::shared_ptr<Exchange>&, HttpHeaders);
  void get_page(const HttpRequest&, const std::shared_ptr<Exchange>&, HttpHeaders);
  Json model_json(const std::string& name) const;
  void get_model(const HttpRequest&, const std::shared_ptr<Exchange>&, HttpHeaders);
  void get_models(const HttpRequest&, const std::shared_ptr<Exchange>&, HttpHeaders);
  void post_chat(const HttpRequest&, const std::shared_ptr<Exchange>&, HttpHeaders);
  void post_completion(const HttpRequest&, const std::shared_ptr<Exchange>&, HttpHeaders);
  void get_tokenizer_info(const HttpRequest&, const std::shared_ptr<Exchange>&, HttpHeaders);
  void post_tokenize(const HttpRequest&, const std::shared_ptr<Exchange>&, HttpHeaders);
  void post_detokenize(const HttpRequest&, const std::shared_ptr<Exchange>&, HttpHeaders);

  using Parse = ApiResult<Job> (*)(const Json& body, const RequestContext& context);
  void generate(Parse parse, const HttpRequest& request, const std::shared_ptr<Exchange>& exchange,
                HttpHeaders headers);
  // Answers with the JSON that `work` makes on the worker.
  void answer_on_worker(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers,
                        std::function<ApiResult<Json>(const Json& body)> work);
  void start(Job job, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers);
  void deliver(std::shared_ptr<Reply> reply, size_t choice, const TokenEvent& event);
  void take_events();

  ApiOptions options_;
  Post network_, worker_;
  int64_t started_;
  double loaded_ = 0;
  bool draining_ = false, abandoned_ = false;
  std::vector<std::weak_ptr<Reply>> replies_;  // at work, and some that were
  TextEngine* engine_ = nullptr;
  std::unique_ptr<ConstraintCompiler> constraints_;
  Metrics metrics_;

  struct Delivery {
    std::shared_ptr<Reply> reply;
    size_t choice;
    TokenEvent event;
    Clock::time_point at;
  };
  std::mutex mailbox_mutex_;
  std::vector<Delivery> mailbox_;  // from the engine's thread; one task empties it
};

}  // namespace octavo
