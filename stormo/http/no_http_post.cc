#include <stormo/http/http_post.h>

namespace stormo::http {

bool can_http_post() { return false; }

HttpAnswer http_post(const HttpRequest&, Duration, const std::atomic<bool>*) {
  return {.exchange = Status(Code::kRefused, "this Stormo was built without libcurl")};
}

}  // namespace stormo::http
