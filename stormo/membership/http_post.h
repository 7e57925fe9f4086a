#pragma once

#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>

namespace stormo::membership {

struct HttpRequest {
  std::string url;
  std::string body;           ///< JSON
  std::string authorization;  ///< header of this name; empty: none
};
struct HttpAnswer {
  Status exchange;  ///< whether there is an answer; kRefused: what answers does not speak HTTP
  bool was_sent = false;  ///< whether the server may have the request, or a part of it
  int code = 0;           ///< 200, 404, ...
  std::string body;
};

/// POSTs once, on a connection of its own, and follows nothing: no redirection, no proxy. Blocks
/// for `at_most`, which is at least a millisecond.
HttpAnswer http_post(const HttpRequest& request, Duration at_most);

}  // namespace stormo::membership
