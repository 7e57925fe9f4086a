// HTTP: where the head of a request ends, what it says, and who may read a page; what an answer
// says.
#include <stormo/base/check.h>
#include <stormo/observe/http/client.h>
#include <stormo/observe/http/guard.h>
#include <stormo/observe/http/request.h>

#include <algorithm>
#include <optional>

#include "tests/fuzz/fuzz.h"

namespace stormo::fuzz {
namespace {

using namespace observe;

void check_request(std::string_view text) {
  const std::optional<std::size_t> end = request_head(text);
  STORMO_CHECK(end.value_or(0) <= text.size(), "a head that is longer than what came");
  if (!end) return;
  const Result<HttpRequest> request = parse_request(text.substr(0, *end));
  if (!request.ok()) return;
  STORMO_CHECK(request->path.starts_with('/'), "no path");
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < ' ' && c != '\t'; };
  for (const std::string* field : {&request->method, &request->path, &request->host,
                                   &request->authorization, &request->accept}) {
    STORMO_CHECK(std::ranges::none_of(*field, is_control), "a control character");
  }
  const HttpGuard guard{.token = "0123456789abcdef"};
  STORMO_CHECK(refusal_of(*request, guard).has_value(), "a page without the token");
  const bool passes = !refusal_of(*request, {}).has_value();
  STORMO_CHECK(!passes || (request->method == "GET" && !request->has_origin), "not a GET");
}

void check_answer(std::string_view text) {
  const auto now = parse_response(text, false), ended = parse_response(text, true);
  if (!now.ok()) STORMO_CHECK(!ended.ok(), "an end mends an answer");
  if (!ended.ok()) return;
  STORMO_CHECK(ended->has_value(), "an answer that has ended is not whole");
  STORMO_CHECK((*ended)->body.size() <= text.size(), "a body that is longer than what came");
  if (*now) STORMO_CHECK((*now)->body == (*ended)->body, "an end changes an answer");
}

}  // namespace

std::vector<std::string> seeds() {
  return {"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 3\r\n\r\n{}\n",
          "HTTP/1.0 404 Not Found\r\n\r\nno",
          "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9464\r\nAccept: text/plain;q=0.5\r\n\r\n",
          "GET /json?x HTTP/1.0\r\n\r\n",
          "GET / HTTP/1.1\r\nHost: [::1]:80\r\nAuthorization: Bearer abc\r\n\r\n",
          "POST / HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\nContent-Length: 0\r\n\r\n",
          "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"};
}

}  // namespace stormo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  stormo::fuzz::check_request(stormo::fuzz::as_text(data, size));
  stormo::fuzz::check_answer(stormo::fuzz::as_text(data, size));
  return 0;
}
