#pragma once

#include <atomic>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>

namespace stormo::http {

/// Whether this build has libcurl. Without it http_post() fails.
bool can_http_post();

struct HttpRequest {
  std::string url;                   ///< "http://..." or "https://..."
  std::string body;                  ///< JSON
  std::string authorization;         ///< header of this name; empty: none
  std::vector<std::string> headers;  ///< others: "Name: value"
};
struct HttpAnswer {
  Status exchange;  ///< whether there is an answer; kRefused: what answers does not speak HTTP
  bool was_sent = false;  ///< whether the server may have the request, or a part of it
  int code = 0;           ///< 200, 404, ...
  std::string body;
  Duration retry_after{};  ///< that the server asks for (Retry-After); zero: it does not
};

/// POSTs once, on a connection of its own, and follows nothing: no redirection, no proxy. Blocks
/// for `at_most`, which is at least a millisecond, or until about a second after `given_up` has
/// become true.
HttpAnswer http_post(const HttpRequest& request, Duration at_most,
                     const std::atomic<bool>* given_up = nullptr);

}  // namespace stormo::http
