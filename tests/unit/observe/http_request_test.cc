#include <gtest/gtest.h>

#include <string>

#include <stormo/observe/http/guard.h>
#include <stormo/observe/http/request.h>

namespace stormo::observe {
namespace {

HttpRequest parsed(const std::string& head) { return parse_request(head).take_or_throw(); }

TEST(HttpRequest, APathAndTheHeadersThatMatter) {
  const HttpRequest r = parsed(
      "GET /metrics?a=b HTTP/1.1\r\nHOST:  node7:9464 \r\naccept: text/plain\r\nAccept: "
      "*/*;q=0.1\r\n"
      "Authorization: Bearer abc\r\nX-Other: \xe4\t\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(r.method, "GET");
  EXPECT_EQ(r.path, "/metrics");
  EXPECT_EQ(r.host, "node7:9464");
  EXPECT_EQ(r.accept, "text/plain,*/*;q=0.1");
  EXPECT_EQ(r.authorization, "Bearer abc");
  EXPECT_FALSE(r.has_origin);
  EXPECT_TRUE(parsed("GET / HTTP/1.0\r\nOrigin: null\r\n\r\n").has_origin);
}

TEST(HttpRequest, AHeadIsWholeWithItsEmptyLine) {
  EXPECT_EQ(request_head("GET / HTTP/1.0\r\n"), std::nullopt);
  EXPECT_EQ(request_head("GET / HTTP/1.0\r\n\r"), std::nullopt);
  EXPECT_EQ(request_head("GET / HTTP/1.0\r\n\r\nmore"), 18u);
}

TEST(HttpRequest, WhatIsNoRequestIsRefused) {
  const std::string host = "Host: a\r\n\r\n";
  for (const std::string& head : {
           std::string(),
           std::string("\r\n\r\n"),
           "GET /\r\n" + host,
           "GET  HTTP/1.1\r\n" + host,
           "GET / HTTP/2.0\r\n" + host,
           "GET / HTTP/1.1 \r\n" + host,
           "GET http://a/ HTTP/1.1\r\n" + host,
           "GET metrics HTTP/1.1\r\n" + host,
           "GET /a b HTTP/1.1\r\n" + host,
           "GET /a\x01 HTTP/1.1\r\n" + host,
           "G\xe4T / HTTP/1.1\r\n" + host,
           "GET / HTTP/1.1\n" + host,
           std::string("GET / HTTP/1.1\r\n\r\n"),           // no Host
           std::string("GET / HTTP/1.1\r\nHost:\r\n\r\n"),  // an empty one
           "GET / HTTP/1.1\r\nHost: b\r\n" + host,          // two
           "GET / HTTP/1.1\r\n a: b\r\n" + host,            // a line that goes on
           "GET / HTTP/1.1\r\na : b\r\n" + host,
           "GET / HTTP/1.1\r\na: b\nc: d\r\n" + host,
           "GET / HTTP/1.1\r\nab\r\n" + host,
           "POST / HTTP/1.1\r\nContent-Length: 1\r\n" + host,
           "POST / HTTP/1.1\r\nContent-Length: x\r\n" + host,
           "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + host,
           std::string("GET / HTTP/1.1\r\nHost: a\r\n"),  // no empty line
       }) {
    EXPECT_FALSE(parse_request(head).ok()) << head;
  }
}

int status_of(const HttpRequest& request, const HttpGuard& guard) {
  const std::optional<HttpResponse> refusal = refusal_of(request, guard);
  return refusal ? refusal->status : 200;
}

TEST(HttpGuard, WithoutATokenOnlyNamesThatNoOtherSiteHasAreAnswered) {
  const HttpGuard guard{.token = "", .host_name = "node7"};
  const auto asked_as = [&](const char* host) {
    return status_of({.method = "GET", .path = "/", .host = host}, guard);
  };
  for (const char* own :
       {"127.0.0.1:9464", "127.0.0.1", "[::1]:9464", "LocalHost:9464", "node7", "NODE7:1", ""}) {
    EXPECT_EQ(asked_as(own), 200) << own;
  }
  for (const char* other : {"evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example",
                            "node7.evil.example", "node70", "127.0.0.1:x", "[::1"}) {
    EXPECT_EQ(asked_as(other), 403) << other;
  }
}

TEST(HttpGuard, AnyNameWillDoWithTheToken) {
  const HttpGuard guard{.token = "5ec2e7", .host_name = "10.0.0.1"};
  const auto asked_with = [&](const char* authorization) {
    return status_of(
        {.method = "GET", .path = "/", .host = "proxy:80", .authorization = authorization}, guard);
  };
  EXPECT_EQ(asked_with("Bearer 5ec2e7"), 200);
  EXPECT_EQ(asked_with("bearer 5EC2E7"), 200);
  for (const char* wrong : {"", "5ec2e7", "Bearer", "Bearer ", "Bearer 5ec2e", "Bearer 5ec2e77",
                            "Bearer 5ec2e8", "Basic 5ec2e7", "Bearer  5ec2e7"}) {
    EXPECT_EQ(asked_with(wrong), 401) << wrong;
  }
}

TEST(HttpGuard, NothingButGetAndNothingForOtherSites) {
  for (const char* method :
       {"POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "CONNECT", "get"}) {
    EXPECT_EQ(status_of({.method = method, .path = "/"}, {}), 405) << method;
  }
  EXPECT_EQ(status_of({.method = "GET", .path = "/", .has_origin = true}, {}), 403);
  EXPECT_EQ(
      status_of({.method = "GET", .path = "/", .authorization = "Bearer t", .has_origin = true},
                {.token = "t"}),
      403);
}

}  // namespace
}  // namespace stormo::observe
