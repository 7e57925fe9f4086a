#pragma once

#include <string>

namespace stormo::observe {

struct HttpResponse {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body{};
  /// Not yet: the page is made again, and sent, when the server or the connection's time ends.
  bool at_end = false;
};

}  // namespace stormo::observe
