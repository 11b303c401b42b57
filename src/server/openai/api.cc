#include "server/openai/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "server/openai/json_text.h"
#include "text/utf8.h"

namespace octavo {
namespace {

// In time that depends on the length of the text alone.
bool same_text(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

// "%2F" -> "/"; what is no escape stays.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// "localhost:8000" -> "localhost"
std::string_view host_name(std::string_view host) {
  const size_t bracket = host.find(']');
  return host.substr(0, host.find(':', bracket == std::string_view::npos ? 0 : bracket));
}

// 127.x.y.z, and no name that only begins like it.
bool is_loopback_v4(std::string_view name) {
  return name.starts_with("127.") && name.find_first_not_of("0123456789.") == std::string_view::npos;
}

}  // namespace

ApiError unexpected_error(const std::exception& exception) {
  fmt::print(stderr, "octavo: a request failed: {}\n", exception.what());
  return {.status = 500, .message = "internal error", .type = "server_error"};
}

Api::Api(ApiOptions options, Post network, Post worker)
    : options_(std::move(options)),
      network_(std::move(network)),
      worker_(std::move(worker)),
      started_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()) {}

Api::~Api() = default;

void Api::set_engine(TextEngine* engine) {
  engine_ = engine;
  loaded_ = 1;
  constraints_ = std::make_unique<ConstraintCompiler>(*engine);
}

const std::vector<Api::Route>& Api::routes() {
  static const std::vector<Route> routes = {
      {"GET", "/health", &Api::get_health, true, false},
      {"GET", "/health/ready", &Api::get_health, true, false},
      {"GET", "/health/live", &Api::get_live, true, false},
      {"GET", "/ping", &Api::get_health, true, false},
      {"GET", "/version", &Api::get_version, true, false},
      {"GET", "/metrics", &Api::get_metrics, true, true},
      {"GET", "/", &Api::get_page, true, false},
      {"GET", "/v1/models", &Api::get_models, false, true},
      {"GET", "/v1/models/", &Api::get_model, false, true},
      {"POST", "/v1/chat/completions", &Api::post_chat, false, true},
      {"POST", "/v1/completions", &Api::post_completion, false, true},
      {"GET", "/tokenizer_info", &Api::get_tokenizer_info, false, true},
      {"POST", "/tokenize", &Api::post_tokenize, false, true},
      {"POST", "/detokenize", &Api::post_detokenize, false, true},
  };
  return routes;
}

bool Api::origin_allowed(const HttpRequest& request) const {
  if (request.origin.empty()) return true;
  if (request.origin == "http://" + request.host || request.origin == "https://" + request.host) return true;
  return std::any_of(options_.cors_origins.begin(), options_.cors_origins.end(),
                     [&](const std::string& origin) { return origin == "*" || origin == request.origin; });
}

// A page of another site can have its own name resolve to this machine, and is then of the same origin as the server:
// what it cannot change is the name in Host.
bool Api::host_allowed(const HttpRequest& request) const {
  if (!options_.local_only || request.host.empty()) return true;
  const std::string_view name = host_name(request.host);
  if (name == "localhost" || name.ends_with(".localhost") || name == "[::1]" || is_loopback_v4(name)) return true;
  return std::any_of(options_.cors_origins.begin(), options_.cors_origins.end(), [&](const std::string& origin) {
    const size_t scheme = origin.find("://");
    return origin == "*" ||
           (scheme != std::string::npos && host_name(std::string_view(origin).substr(scheme + 3)) == name);
  });
}

HttpHeaders Api::headers_for(const HttpRequest& request) const {
  if (request.origin.empty() || options_.cors_origins.empty() || !origin_allowed(request)) return {};
  return {{"Access-Control-Allow-Origin", request.origin}, {"Vary", "Origin"}};
}

bool Api::key_matches(const HttpRequest& request) const {
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view given = request.authorization;
  return options_.api_key.empty() ||
         (given.starts_with(kBearer) && same_text(given.substr(kBearer.size()), options_.api_key));
}

void Api::refuse(const std::shared_ptr<Exchange>& exchange, const ApiError& error, HttpHeaders headers) {
  metrics_.rejected();
  exchange->respond({.status = error.status, .body = error_body(error), .headers = std::move(headers)});
}

void Api::handle(HttpRequest request, const std::shared_ptr<Exchange>& exchange) {
  HttpHeaders headers = headers_for(request);
  if (!host_allowed(request))
    return refuse(exchange,
                  {.status = 403,
                   .message = fmt::format("This server without a key answers to localhost, not to {}; see --api-key, "
                                          "and --cors-origin for names of a proxy",
                                          request.host.substr(0, 200)),
                   .code = "host_not_allowed"},
                  {});
  // Pages of other sites may not use a server that was not told of them, whatever they can make a browser send.
  if (!origin_allowed(request))
    return refuse(exchange,
                  {.status = 403,
                   .message = fmt::format("Pages of {} may not use this server; see --cors-origin",
                                          request.origin.substr(0, 200)),
                   .code = "origin_not_allowed"},
                  {});
  if (request.method == "OPTIONS") {
    headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    headers.emplace_back("Access-Control-Allow-Headers",
                         request.requested_headers.empty() || headers_for(request).empty()
                             ? "Authorization, Content-Type"
                             : request.requested_headers);
    headers.emplace_back("Access-Control-Max-Age", "600");
    return exchange->respond({.status = 204, .content_type = "", .headers = std::move(headers)});
  }
  const Route* same_path = nullptr;
  for (const Route& route : routes()) {
    if (!route.matches(request.path)) continue;
    same_path = &route;
    if (route.method != request.method) continue;
    if (!route.open && !key_matches(request)) {
      headers.emplace_back("WWW-Authenticate", "Bearer");
      return refuse(exchange, {.status = 401, .message = "The API key is missing or wrong", .code = "invalid_api_key"},
                    std::move(headers));
    }
    if (route.needs_model && (engine_ == nullptr || draining_)) {
      headers.emplace_back("Retry-After", "1");
      const std::string state =
          draining_ ? "shutting down" : fmt::format("loading the model ({:.0f} %)", 100 * loaded_);
      return refuse(exchange,
                    {.status = 503, .message = "The server is " + state, .code = "not_ready", .type = "server_error"},
                    std::move(headers));
    }
    return (this->*route.handler)(request, exchange, std::move(headers));
  }
  if (same_path == nullptr)
    return refuse(
        exchange,
        {.status = 404, .message = "There is nothing at " + request.method + " " + request.path.substr(0, 200)},
        std::move(headers));
  headers.emplace_back("Allow", same_path->method);
  refuse(exchange, {.status = 405, .message = fmt::format("{} takes {}", request.path, same_path->method)},
         std::move(headers));
}

void Api::get_health(const HttpRequest&, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers) {
  const bool ready = engine_ != nullptr && !draining_;
  const Json json = {{"status", draining_ ? "draining"
                                : ready   ? "ok"
                                          : "loading"},
                     {"live", true},
                     {"ready", ready},
                     {"loaded", loaded_}};
  exchange->respond({.status = ready ? 200 : 503, .body = to_text(json), .headers = std::move(headers)});
}

void Api::get_live(const HttpRequest&, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers) {
  exchange->respond({.body = R"({"live":true})", .headers = std::move(headers)});
}

void Api::get_version(const HttpRequest&, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers) {
  exchange->respond({.body = to_text(Json{{"version", options_.version}}), .headers = std::move(headers)});
}

void Api::get_metrics(const HttpRequest&, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers) {
  exchange->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8",
                     .body = metrics_.text(options_.model_names.front(), engine_->stats()),
                     .headers = std::move(headers)});
}

void Api::get_page(const HttpRequest&, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers) {
  headers.emplace_back("Content-Security-Policy",
                       "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
                       "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  exchange->respond({.content_type = "text/html; charset=utf-8", .body = options_.page, .headers = std::move(headers)});
}

Json Api::model_json(const std::string& name) const {
  return {{"id", name},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "octavo"},
          {"max_model_len", engine_->max_model_len()}};
}

void Api::get_models(const HttpRequest&, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers) {
  Json json = {{"object", "list"}, {"data", Json::array()}};
  for (size_t i = 0; i < options_.names_told; ++i) json["data"].push_back(model_json(options_.model_names[i]));
  exchange->respond({.body = to_text(json), .headers = std::move(headers)});
}

void Api::get_model(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers) {
  const std::string name =
      percent_decoded(std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
  const ApiResult<std::string> known = checked_model({{"model", replace_invalid_utf8(name)}}, options_.model_names);
  if (!known) return refuse(exchange, known.error(), std::move(headers));
  const auto end = options_.model_names.begin() + static_cast<ptrdiff_t>(options_.names_told);
  const bool told = std::find(options_.model_names.begin(), end, *known) != end;
  exchange->respond(
      {.body = to_text(model_json(told ? *known : options_.model_names.front())), .headers = std::move(headers)});
}

void Api::post_chat(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers) {
  generate(parse_chat_request, request, exchange, std::move(headers));
}

void Api::post_completion(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers) {
  generate(parse_completion_request, request, exchange, std::move(headers));
}

void Api::generate(Parse parse, const HttpRequest& request, const std::shared_ptr<Exchange>& exchange,
                   HttpHeaders headers) {
  const Clock::time_point arrived = Clock::now();
  worker_([this, arrived, parse, text = request.body, exchange, headers = std::move(headers)]() mutable {
    if (exchange->gone()) return;
    const Clock::time_point begun = Clock::now();
    ApiResult<Job> job;
    try {
      const auto parsed = [&]() -> ApiResult<Job> {
        OCTAVO_API_ASSIGN(const Json body, parse_body(text));
        return parse(body, {*engine_, options_.model_names, *constraints_});
      };
      job = parsed();
    } catch (const std::exception& exception) {
      job = octavo::refuse(unexpected_error(exception));
    }
    if (job) {
      job->arrived = arrived;
      job->wait_seconds = std::chrono::duration<double>(begun - arrived).count();
    }
    // std::function wants copies: the job travels by pointer.
    auto shared = std::make_shared<ApiResult<Job>>(std::move(job));
    network_([this, shared, exchange, headers = std::move(headers)]() mutable {
      if (exchange->gone()) return;
      if (!*shared) return refuse(exchange, shared->error(), std::move(headers));
      start(std::move(**shared), exchange, std::move(headers));
    });
  });
}

void Api::start(Job job, const std::shared_ptr<Exchange>& exchange, HttpHeaders headers) {
  if (abandoned_) return refuse(exchange, shutting_down(), std::move(headers));
  const auto reply = std::make_shared<Reply>(std::move(job), exchange, std::move(headers), *engine_, metrics_);
  if (replies_.size() == replies_.capacity())
    std::erase_if(replies_, [](const auto& known) { return known.expired(); });
  replies_.push_back(reply);
  reply->start([this](std::shared_ptr<Reply> to, size_t choice, const TokenEvent& event) {
    deliver(std::move(to), choice, event);
  });
}

void Api::abandon_all() {
  abandoned_ = true;
  for (const auto& known : replies_)
    if (const auto reply = known.lock()) reply->abandon(shutting_down());
}

void Api::deliver(std::shared_ptr<Reply> reply, size_t choice, const TokenEvent& event) {
  bool first = false;
  {
    const std::lock_guard lock(mailbox_mutex_);
    first = mailbox_.empty();
    mailbox_.push_back({std::move(reply), choice, event, Clock::now()});
  }
  if (first) network_([this] { take_events(); });
}

void Api::take_events() {
  std::vector<Delivery> events;
  {
    const std::lock_guard lock(mailbox_mutex_);
    events.swap(mailbox_);
  }
  for (const Delivery& delivery : events) {
    try {
      delivery.reply->on_event(delivery.choice, delivery.event, delivery.at);
    } catch (const std::exception& exception) {
      delivery.reply->abandon(unexpected_error(exception));
    }
  }
}

std::string Api::log_line(double seconds) {
  return engine_ == nullptr ? std::string() : metrics_.log_line(engine_->stats(), seconds);
}

}  // namespace octavo
