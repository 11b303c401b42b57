#include "loadgen/load_generator.h"

#include <algorithm>
#include <chrono>

#include "loadgen/http_client.h"
#include "loadgen/reply_reader.h"

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

HttpClientOptions client_options(const ConnectionOptions& options) {
  return {.api_key = options.api_key,
          .timeout = std::chrono::milliseconds(static_cast<int64_t>(options.timeout_seconds * 1000)),
          .insecure = options.insecure};
}

class LoadRun {
 public:
  LoadRun(const ServerAddress& server, std::span<const std::string> bodies, const LoadOptions& options,
          const std::function<void(const RunProgress&)>& progress)
      : bodies_(bodies),
        options_(options),
        progress_(progress),
        client_(io_, server, client_options(options.connection)),
        records_(bodies.size()),
        over_(bodies.size(), false) {}

  Result<std::vector<RequestRecord>> run() {
    OCTAVO_TRY(client_.resolve());
    start_ = Clock::now();
    const size_t limit = options_.concurrency == 0 ? bodies_.size() : options_.concurrency;
    for (size_t i = 0; i < std::min(limit, bodies_.size()); ++i) asio::co_spawn(io_, work(), asio::detached);
    asio::co_spawn(io_, watch(), asio::detached);
    io_.run();
    report();
    for (size_t i = 0; i < records_.size(); ++i)
      if (!over_[i]) interrupt(i);
    return std::move(records_);
  }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  // One of the loop's clients: takes the next request, waits until it is due, sees it through.
  asio::awaitable<void> work() {
    asio::steady_timer timer(io_);
    while (next_ < bodies_.size()) {
      const size_t i = next_++;
      if (!options_.schedule.empty()) {
        timer.expires_at(
            start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.schedule[i])));
        const auto [error] = co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
        if (error) co_return;
      }
      co_await send(i);
    }
  }

  asio::awaitable<void> send(size_t i) {
    RequestRecord& record = records_[i];
    record.due = options_.schedule.empty() ? now() : options_.schedule[i];
    ReplyReader reader(record);
    int answered = 0;
    const ReplySink sink = {.begin =
                                [&](int status, std::string_view type) {
                                  answered = status;
                                  reader.begin(status, type);
                                },
                            .body = [&](std::string_view bytes) { return reader.feed(bytes, now()); }};
    ++at_work_;
    const std::string problem = co_await client_.request(options_.endpoint, &bodies_[i], sink);
    --at_work_;
    // The server goes first: what it refuses now was interrupted too.
    if (interrupted() && (!problem.empty() || answered == 503)) {
      io_.stop();
      co_return;
    }
    reader.end(problem, now());
    over_[i] = true;
    ++done_;
    if (!record.completed()) ++failed_;
    output_tokens_ += record.output_tokens;
  }

  // Reports while requests are at work, so that a slow server does not look like a dead one; ends the run when told to.
  asio::awaitable<void> watch() {
    asio::steady_timer timer(io_);
    while (done_ < bodies_.size()) {
      timer.expires_after(std::chrono::milliseconds(100));
      co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
      if (interrupted()) io_.stop();
      report();
    }
  }

  bool interrupted() const { return options_.interrupted != nullptr && *options_.interrupted; }

  void report() const {
    progress_({.done = done_,
               .total = bodies_.size(),
               .at_work = at_work_,
               .failed = failed_,
               .output_tokens = output_tokens_,
               .seconds = now()});
  }

  void interrupt(size_t i) {
    records_[i].error = "interrupted";
    records_[i].due = std::min(options_.schedule.empty() ? now() : options_.schedule[i], now());
    records_[i].last = records_[i].due;
  }

  std::span<const std::string> bodies_;
  const LoadOptions& options_;
  const std::function<void(const RunProgress&)>& progress_;
  Clock::time_point start_;
  size_t next_ = 0, done_ = 0, at_work_ = 0, failed_ = 0;
  int64_t output_tokens_ = 0;
  asio::io_context io_{1};
  HttpClient client_;
  std::vector<RequestRecord> records_;
  std::vector<bool> over_;
};

asio::awaitable<void> fetch_into(HttpClient& client, const std::string& path, const std::string* body,
                                 FetchedReply& reply, std::string& problem) {
  static constexpr size_t kMaxBody = size_t{64} << 20;
  const ReplySink sink = {.begin = [&](int status, std::string_view) { reply.status = status; },
                          .body =
                              [&](std::string_view bytes) {
                                reply.body += bytes;
                                return reply.body.size() <= kMaxBody;
                              }};
  problem = co_await client.request(path, body, sink);
}

}  // namespace

Result<std::vector<RequestRecord>> generate_load(const ServerAddress& server, std::span<const std::string> bodies,
                                                 const LoadOptions& options,
                                                 const std::function<void(const RunProgress&)>& progress) {
  LoadRun run(server, bodies, options, progress);
  return run.run();
}

Result<FetchedReply> fetch(const ServerAddress& server, const std::string& path, const std::string* body,
                           const ConnectionOptions& options) {
  asio::io_context io(1);
  HttpClient client(io, server, client_options(options));
  OCTAVO_TRY(client.resolve());
  FetchedReply reply;
  std::string problem;
  asio::co_spawn(io, fetch_into(client, path, body, reply, problem), asio::detached);
  io.run();
  if (!problem.empty())
    return fail({.what = "the server does not answer",
                 .where = server.text() + path,
                 .found = problem,
                 .remedy = "start one with `octavo serve MODEL`, or check the URL"});
  return reply;
}

}  // namespace octavo
