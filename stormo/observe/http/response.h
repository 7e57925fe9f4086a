#pragma once

#include <string>

namespace stormo::observe {

struct HttpResponse {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body{};
};

}  // namespace stormo::observe
