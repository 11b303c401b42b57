// Both loops against servers that behave in every way, over real sockets.
#include "loadgen/load_generator.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>

#include "loadgen/fake_server.h"
#include "loadgen/schedule.h"
#include "loadgen/server_facts.h"
#include "loadgen/summary.h"

namespace octavo {
namespace {

std::vector<RequestRecord> load(const ServerAddress& address, size_t count, const LoadOptions& options) {
  const std::vector<std::string> bodies(count, "{}");
  size_t told = 0;
  Result<std::vector<RequestRecord>> records =
      generate_load(address, bodies, options, [&](const RunProgress& progress) { told = progress.done; });
  EXPECT_TRUE(records) << records.error().message();
  EXPECT_EQ(records->size(), count);
  if (options.interrupted == nullptr) {
    EXPECT_EQ(told, count);
  }
  return std::move(*records);
}

// The error of one request to a server that answers with these bytes and then closes or not.
std::string error_of(const std::string& bytes, bool more, double timeout = 20) {
  FakeServer server([&](FakeServer&, int fd, const std::string&) {
    FakeServer::send(fd, bytes);
    return more;
  });
  return load(server.address(), 1, {.concurrency = 1, .connection = {.timeout_seconds = timeout}})[0].error;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(LoadGenerator, ClosedLoopKeepsItsConcurrencyAndItsConnections) {
  FakeServer server([](FakeServer&, int fd, const std::string& request) {
    EXPECT_TRUE(request.starts_with("POST /v1/completions HTTP/1.1\r\n")) << request;
    EXPECT_TRUE(contains(request, "Authorization: Bearer secret\r\n"));
    FakeServer::send(fd, whole_stream());
    return true;
  });
  const auto records = load(server.address(), 100, {.concurrency = 3, .connection = {.api_key = "secret"}});
  for (const RequestRecord& record : records) {
    EXPECT_EQ(record.error, "");
    EXPECT_EQ(record.output_tokens, 2);
    EXPECT_EQ(record.gaps.size(), 1u);
    EXPECT_LE(record.due, record.first);
    EXPECT_LE(record.first, record.last);
  }
  EXPECT_LE(server.most_at_work, 3);
  EXPECT_LE(server.connections(), 3u);
  EXPECT_LE(summarize_load(records, {}).max_concurrent, 3u);
}

// Nothing is answered before everything has arrived: only a generator that never waits for answers gets there.
TEST(LoadGenerator, OpenLoopDoesNotWaitForASlowServer) {
  constexpr int kCount = 40;
  FakeServer server([](FakeServer& self, int fd, const std::string&) {
    while (self.requests < kCount && !self.stopping()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    FakeServer::send(fd, whole_stream());
    return true;
  });
  const std::vector<double> schedule = poisson_schedule(kCount, 400, 1);
  const auto records = load(server.address(), kCount, {.schedule = schedule});
  for (int i = 0; i < kCount; ++i) {
    EXPECT_EQ(records[i].error, "");
    EXPECT_EQ(records[i].due, schedule[i]);
    EXPECT_GE(records[i].first, schedule.back());
  }
  EXPECT_EQ(server.most_at_work, kCount);
}

TEST(LoadGenerator, LatencyCountsFromTheScheduleUnderALimit) {
  FakeServer server([](FakeServer&, int fd, const std::string&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    FakeServer::send(fd, whole_stream());
    return true;
  });
  const auto records = load(server.address(), 6, {.concurrency = 1, .schedule = std::vector<double>(6, 0.0)});
  for (size_t i = 0; i < records.size(); ++i) EXPECT_GE(records[i].ttft(), 0.005 * static_cast<double>(i + 1));
  EXPECT_EQ(server.most_at_work, 1);
}

TEST(LoadGenerator, StreamsInSinglesBytes) {
  FakeServer server([](FakeServer&, int fd, const std::string&) {
    for (const char c : whole_stream()) FakeServer::send(fd, std::string(1, c));
    return true;
  });
  for (const RequestRecord& record : load(server.address(), 4, {.concurrency = 2})) {
    EXPECT_EQ(record.error, "");
    EXPECT_EQ(record.output_tokens, 2);
  }
}

TEST(LoadGenerator, RepliesWithoutChunksEndWithTheConnection) {
  const std::string head = "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
  EXPECT_EQ(error_of(head + text_event("a") + kLastEvents, false), "");
  EXPECT_TRUE(contains(error_of(head + text_event("a"), false), "without finish_reason"));
}

TEST(LoadGenerator, FailuresAreNamed) {
  EXPECT_TRUE(contains(error_of("", false), "waiting for the reply: the server closed the connection"));
  EXPECT_TRUE(contains(error_of(kStreamHead + http_chunk(text_event("a")), false),
                       "reading the reply: the server closed the connection in mid-stream"));
  EXPECT_EQ(error_of(plain_reply(429, "application/json", R"({"error":{"message":"busy"}})"), true), "HTTP 429: busy");
  EXPECT_TRUE(contains(error_of(plain_reply(200, "application/json", "{}"), true), "not a stream"));
  EXPECT_TRUE(contains(error_of("SSH-2.0-OpenSSH\r\n\r\n", true), "waiting for the reply: "));
  EXPECT_TRUE(contains(error_of(kStreamHead + "zz\r\n", true), "reading the reply: "));
  EXPECT_TRUE(contains(error_of("", true, 0.05), "no end after 0.05 s"));
  EXPECT_TRUE(contains(error_of(kStreamHead + http_chunk(text_event("a")), true, 0.05), "no end after 0.05 s"));
}

TEST(LoadGenerator, NobodyListens) {
  ServerAddress address;
  {
    address = FakeServer([](FakeServer&, int, const std::string&) { return false; }).address();
  }
  for (const RequestRecord& record : load(address, 3, {.concurrency = 1}))
    EXPECT_EQ(record.error, "connecting: Connection refused");
  const auto model = served_model(address, {}, 0);
  ASSERT_FALSE(model);
  EXPECT_TRUE(contains(model.error().found, "refused"));
  EXPECT_TRUE(contains(model.error().where, address.port));
  address.host = "no-such-host.invalid";
  EXPECT_FALSE(generate_load(address, {}, {}, [](const RunProgress&) {}));
}

TEST(LoadGenerator, AKeptConnectionThatTheServerClosedIsOpenedAnew) {
  FakeServer server([](FakeServer&, int fd, const std::string&) {
    FakeServer::send(fd, whole_stream());  // says nothing of closing
    return false;
  });
  for (const RequestRecord& record : load(server.address(), 20, {.concurrency = 2})) EXPECT_EQ(record.error, "");
  EXPECT_GE(server.connections(), 20u);
}

TEST(LoadGenerator, OneFailureDoesNotTouchTheOthers) {
  FakeServer server([](FakeServer& self, int fd, const std::string&) {
    const bool good = self.requests % 3 != 0;
    FakeServer::send(fd, good ? whole_stream() : kStreamHead + http_chunk("data: {\"error\":{\"message\":\"x\"}}\n\n"));
    return good;
  });
  const LoadSummary summary = summarize_load(load(server.address(), 30, {.concurrency = 1}), {});
  EXPECT_EQ(summary.completed, 20u);
  ASSERT_EQ(summary.failures.size(), 1u);
  EXPECT_EQ(summary.failures[0].second, 10u);
}

TEST(LoadGenerator, Interrupted) {
  std::atomic<bool> interrupted = false;
  FakeServer server([&](FakeServer& self, int fd, const std::string&) {
    if (self.requests > 5) {
      interrupted = true;
      return true;  // without an answer
    }
    FakeServer::send(fd, whole_stream());
    return true;
  });
  const auto records = load(server.address(), 12, {.concurrency = 1, .interrupted = &interrupted});
  for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i].error, i < 5 ? "" : "interrupted") << i;
}

TEST(ServerFacts, ModelsAndTokens) {
  FakeServer server([](FakeServer&, int fd, const std::string& request) {
    if (request.starts_with("GET /v1/models"))
      FakeServer::send(fd, plain_reply(200, "application/json", R"({"data":[{"id":"the-model"},{"id":"b"}]})"));
    else if (request.starts_with("POST /tokenize"))
      FakeServer::send(fd, plain_reply(200, "application/json", R"({"tokens":[5,3,5,9]})"));
    else
      FakeServer::send(fd, plain_reply(404, "application/json", "{}"));
    return true;
  });
  EXPECT_EQ(served_model(server.address(), {}, 0).value(), "the-model");
  EXPECT_EQ(plain_token_ids(server.address(), "m", {}).value(), (std::vector<int64_t>{3, 5, 9}));
  FakeServer other([](FakeServer&, int fd, const std::string&) {
    FakeServer::send(fd, plain_reply(401, "application/json", R"({"error":{"message":"no key"}})"));
    return true;
  });
  EXPECT_TRUE(contains(served_model(other.address(), {}, 0).error().remedy, "--api-key"));
  EXPECT_TRUE(contains(plain_token_ids(other.address(), "m", {}).error().remedy, "--vocab-size"));
}

TEST(ServerFacts, WaitsForAServerThatLoads) {
  std::atomic<int> asked = 0;
  FakeServer server([&](FakeServer&, int fd, const std::string& request) {
    const bool health = request.starts_with("GET /health");
    FakeServer::send(fd,
                     plain_reply(health && asked++ == 0 ? 503 : 200, "application/json", R"({"data":[{"id":"m"}]})"));
    return true;
  });
  EXPECT_TRUE(contains(served_model(server.address(), {}, 0).error().what, "loading"));
  asked = 0;
  EXPECT_EQ(served_model(server.address(), {}, 20).value(), "m");
}

// A server with a certificate that nobody has signed.
class TlsServer {
 public:
  TlsServer() : acceptor_(io_, {boost::asio::ip::address_v4::loopback(), 0}) {
    make_certificate();
    thread_ = std::thread([this] { serve(); });
  }
  ~TlsServer() {
    stopping_ = true;
    boost::asio::ip::tcp::socket last(io_);  // wakes accept()
    boost::system::error_code ignored;
    last.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
  }
  ServerAddress address() const {
    return {.tls = true, .host = "127.0.0.1", .port = std::to_string(acceptor_.local_endpoint().port())};
  }

 private:
  void make_certificate() {
    EVP_PKEY* key = EVP_RSA_gen(2048);
    X509* certificate = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
    X509_sign(certificate, key, EVP_sha256());
    SSL_CTX_use_certificate(context_.native_handle(), certificate);
    SSL_CTX_use_PrivateKey(context_.native_handle(), key);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  void serve() {
    while (true) {
      boost::asio::ip::tcp::socket socket = acceptor_.accept();
      if (stopping_) return;
      boost::asio::ssl::stream<boost::asio::ip::tcp::socket> stream(std::move(socket), context_);
      boost::system::error_code error;
      stream.handshake(boost::asio::ssl::stream_base::server, error);
      if (error) continue;
      std::string request;
      boost::asio::read_until(stream, boost::asio::dynamic_buffer(request), "{}", error);
      if (!error) boost::asio::write(stream, boost::asio::buffer(whole_stream()), error);
    }
  }

  boost::asio::io_context io_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::ssl::context context_{boost::asio::ssl::context::tls_server};
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

TEST(LoadGenerator, TlsChecksTheCertificateUnlessTold) {
  TlsServer server;
  const auto refused = load(server.address(), 1, {.concurrency = 1});
  EXPECT_TRUE(contains(refused[0].error, "certificate verify failed")) << refused[0].error;
  const auto accepted = load(server.address(), 3, {.concurrency = 1, .connection = {.insecure = true}});
  for (const RequestRecord& record : accepted) {
    EXPECT_EQ(record.error, "");
    EXPECT_EQ(record.output_tokens, 2);
  }
}

}  // namespace
}  // namespace octavo
