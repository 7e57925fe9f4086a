#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <stormo/observe/http/server.h>

#include "tests/unit/observe/http_client.h"

namespace stormo::observe {
namespace {

using std::chrono::milliseconds;
using test::Client;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::size_t kLarge = 16u << 20;  // more than sockets hold

HttpResponse pages(const HttpRequest& request) {
  if (request.path == "/hello") return {.body = "hello\n"};
  if (request.path == "/large") return {.body = std::string(kLarge, 'x')};
  if (request.path == "/no-memory") throw std::bad_alloc();
  return {.status = 404, .body = "no\n"};
}

std::unique_ptr<HttpServer> serve(Duration most_time = std::chrono::seconds(20)) {
  return HttpServer::start({.address = {"127.0.0.1", 0}, .most_time = most_time}, pages)
      .take_or_throw();
}

/// What a server says to these bytes.
std::string said_to(const HttpServer& server, const std::string& bytes) {
  const Client client(server.address());
  client.send(bytes);
  return client.rest();
}

TEST(HttpServer, AnswersOneRequestForEachConnection) {
  const auto server = serve();
  const std::string answer = test::get(server->address(), "/hello?x");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Length: 6\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_EQ(test::body_of(answer), "hello\n");
  EXPECT_EQ(test::body_of(test::get(server->address(), "/large")).size(), kLarge);
  EXPECT_THAT(test::get(server->address(), "/other"), StartsWith("HTTP/1.1 404 "));
}

TEST(HttpServer, BytesMayComeOneByOne) {
  const auto server = serve();
  const Client client(server->address());
  for (const char c : std::string("GET /hello HTTP/1.0\r\n\r\n")) ASSERT_TRUE(client.send({&c, 1}));
  EXPECT_EQ(test::body_of(client.rest()), "hello\n");
}

TEST(HttpServer, WhatIsNoGetIsRefused) {
  const auto server = serve();
  EXPECT_THAT(said_to(*server, "POST /hello HTTP/1.0\r\n\r\n"),
              testing::AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("\r\nAllow: GET\r\n")));
  EXPECT_THAT(said_to(*server, "GET /hello HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
              StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(said_to(*server, "\x16\x03\x01\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(said_to(*server, "GET /../../etc/passwd HTTP/1.0\r\n\r\n"),
              StartsWith("HTTP/1.1 404 "));
}

TEST(HttpServer, ALongRequestIsRefusedBeforeItIsRead) {
  const auto server = serve();
  const std::string begin = "GET /hello HTTP/1.0\r\nX: ";
  const std::string fits = begin + std::string(kMaxRequestBytes - begin.size() - 4, 'x');
  EXPECT_THAT(said_to(*server, fits + "\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(said_to(*server, fits + "x\r\n\r\n"), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(said_to(*server, begin + std::string(1u << 20, 'x')), StartsWith("HTTP/1.1 431 "));
}

TEST(HttpServer, WhoSaysNothingOrTakesNothingIsCutOff) {
  const auto server = serve(milliseconds(300));
  const auto begin = std::chrono::steady_clock::now();
  const Client silent(server->address()), slow(server->address()), deaf(server->address());
  ASSERT_TRUE(deaf.send("GET /large HTTP/1.0\r\n\r\n"));
  EXPECT_THAT(test::get(server->address(), "/hello"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(silent.rest(), "");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(300));
  while (slow.send("x")) {  // a byte now and then does not buy more time
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  }
  EXPECT_LT(deaf.rest().size(), kLarge);
}

TEST(HttpServer, ManyConnectionsKeepNobodyWaiting) {
  const auto server = serve();
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<Client>(server->address()));
  EXPECT_EQ(test::body_of(test::get(server->address(), "/hello")), "hello\n");
  EXPECT_EQ(silent.front()->rest(), "");  // the oldest have made room
}

TEST(HttpServer, APageThatCannotBeMadeEndsNothing) {
  const auto server = serve();
  EXPECT_EQ(test::get(server->address(), "/no-memory"), "");
  EXPECT_EQ(test::body_of(test::get(server->address(), "/hello")), "hello\n");
}

TEST(HttpServer, APortThatIsTakenIsNamedAndFreeAgainAtOnce) {
  auto first = serve();
  const transport::HostPort at = transport::parse_host_port(first->address()).take_or_throw();
  const auto taken = HttpServer::start({.address = at}, pages);
  ASSERT_FALSE(taken.ok());
  EXPECT_THAT(taken.status().message(),
              testing::AllOf(HasSubstr(first->address()), HasSubstr("choose another port")));
  EXPECT_EQ(test::body_of(test::get(first->address(), "/hello")), "hello\n");
  const Client open(first->address());
  first.reset();  // with a connection that waits, and one that the kernel remembers
  const auto again = HttpServer::start({.address = at}, pages);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(test::body_of(test::get((*again)->address(), "/hello")), "hello\n");
}

TEST(HttpServer, OtherMachinesNeedAToken) {
  const auto open = HttpServer::start({.address = {"0.0.0.0", 0}}, pages);
  ASSERT_FALSE(open.ok());
  EXPECT_EQ(open.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(open.status().message(), HasSubstr("need a token"));
  const auto server =
      HttpServer::start({.address = {"0.0.0.0", 0}, .token = "abc"}, pages).take_or_throw();
  const std::string at =
      "127.0.0.1:" +
      std::to_string(transport::parse_host_port(server->address()).take_or_throw().port);
  EXPECT_THAT(test::get(at, "/hello"),
              testing::AllOf(StartsWith("HTTP/1.1 401 "), testing::Not(HasSubstr("hello"))));
  EXPECT_THAT(test::get(at, "/hello", "Authorization: Bearer abc\r\n"),
              StartsWith("HTTP/1.1 200 "));
}

}  // namespace
}  // namespace stormo::observe
