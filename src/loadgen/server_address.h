// ServerAddress: where an OpenAI server listens, from a URL.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace octavo {

struct ServerAddress {
  bool tls = false;
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
  std::string path;  // before the API's own paths; without a slash at its end

  std::string host_header() const;
  std::string text() const;  // the URL, without a slash at its end
};

// "http://HOST[:PORT][/PATH]" or https; "/v1" at the end, which clients' base URLs have, is left out.
Result<ServerAddress> parse_server_url(std::string_view url);

// Whether a text is meant as a URL and not as a path.
bool looks_like_url(std::string_view text);

}  // namespace octavo
