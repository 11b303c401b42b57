#include "loadgen/server_address.h"

#include <algorithm>

namespace octavo {
namespace {

bool valid_port(std::string_view port) {
  return !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string_view::npos &&
         std::stoi(std::string(port)) >= 1 && std::stoi(std::string(port)) <= 65535;
}

bool default_port(const ServerAddress& address) {
  return address.port == (address.tls ? "443" : "80");
}

}  // namespace

bool looks_like_url(std::string_view text) {
  return text.find("://") != std::string_view::npos;
}

std::string ServerAddress::host_header() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return default_port(*this) ? name : name + ":" + port;
}

std::string ServerAddress::text() const {
  return (tls ? "https://" : "http://") + host_header() + path;
}

Result<ServerAddress> parse_server_url(std::string_view url) {
  const auto refuse = [url](const char* what) {
    return fail({.what = what,
                 .where = "URL",
                 .found = std::string(url),
                 .expected = "http://HOST:PORT or https://HOST, as in http://127.0.0.1:8000"});
  };
  ServerAddress address;
  std::string_view rest = url;
  if (rest.starts_with("http://"))
    rest.remove_prefix(7);
  else if (rest.starts_with("https://"))
    address.tls = true, rest.remove_prefix(8);
  else
    return refuse("not an http or https URL");
  if (rest.find_first_of("?#@ \t\r\n") != std::string_view::npos)
    return refuse("a URL with a query, a user or spaces is not a server's address");
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash), path = rest.substr(slash);
  if (authority.starts_with('[')) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return refuse("the URL's IPv6 address has no end");
    address.host = authority.substr(1, close - 1);
    authority.remove_prefix(close + 1);
  } else {
    const size_t colon = std::min(authority.find(':'), authority.size());
    address.host = authority.substr(0, colon);
    authority.remove_prefix(colon);
  }
  address.port = address.tls ? "443" : "80";
  if (!authority.empty()) {
    if (authority.front() != ':' || !valid_port(authority.substr(1))) return refuse("the URL's port is not one");
    address.port = authority.substr(1);
  }
  if (address.host.empty()) return refuse("the URL has no host");
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  while (path.ends_with('/')) path.remove_suffix(1);
  address.path = path;
  return address;
}

}  // namespace octavo
