// The load generator: sends requests in a closed or an open loop and keeps a record of each. One thread, the caller's.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "loadgen/record.h"
#include "loadgen/server_address.h"

namespace octavo {

struct ConnectionOptions {
  std::string api_key;           // empty: none
  double timeout_seconds = 600;  // of a request, from connecting to its reply's last byte
  bool insecure = false;         // accept any TLS certificate
};

struct LoadOptions {
  std::string endpoint = "/v1/completions";
  // Requests at work at most. 0: no limit.
  size_t concurrency = 0;
  // When each request is due, in seconds from the start: an open loop. Latency counts from then, also where a request
  // had to wait for its turn under `concurrency`. Empty: a closed loop, the next request when one is answered.
  std::vector<double> schedule;
  ConnectionOptions connection;
  // Ends the run when it turns true; requests not answered by then are recorded as "interrupted".
  const std::atomic<bool>* interrupted = nullptr;
};

struct RunProgress {
  size_t done = 0, total = 0, at_work = 0, failed = 0;
  int64_t output_tokens = 0;
  double seconds = 0;
};

// Sends each body to the endpoint. Error: only where the server's name cannot be found; all else is in the records.
Result<std::vector<RequestRecord>> generate_load(const ServerAddress& server, std::span<const std::string> bodies,
                                                 const LoadOptions& options,
                                                 const std::function<void(const RunProgress&)>& progress);

struct FetchedReply {
  int status = 0;
  std::string body;
};
// One request, waited for: GET, or POST if `body` is given. Error: no reply.
Result<FetchedReply> fetch(const ServerAddress& server, const std::string& path, const std::string* body,
                           const ConnectionOptions& options);

}  // namespace octavo
