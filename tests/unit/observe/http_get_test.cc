#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <memory>
#include <string>

#include <stormo/observe/http/client.h>
#include <stormo/observe/http/server.h>

namespace stormo::observe {
namespace {

using testing::HasSubstr;

constexpr std::size_t kLarge = 8u << 20;  // more than sockets hold
constexpr const char* kToken = "5e5e";

HttpResponse numbered_page(const HttpRequest& request) {
  static int calls = 0;
  if (request.path == "/large") return {.body = std::string(kLarge, 'x')};
  return {.body = std::to_string(++calls), .at_end = request.path == "/end"};
}

std::unique_ptr<HttpServer> serve_with(const std::string& token,
                                       Duration most_time = std::chrono::seconds(20)) {
  return HttpServer::start({.address = {"127.0.0.1", 0}, .token = token, .most_time = most_time},
                           numbered_page)
      .take_or_throw();
}

HttpGet::Options page_of(const HttpServer& server, const std::string& path,
                         const std::string& token = "") {
  return {.address = transport::parse_host_port(server.address()).take_or_throw(),
          .path = path,
          .token = token};
}

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

/// The body of an answer that must be there.
std::string body_in(const std::string& bytes, bool ended) {
  const auto parsed = parse_response(bytes, ended);
  return parsed.ok() && *parsed ? (*parsed)->body : "(none)";
}

TEST(HttpAnswer, IsWholeByItsLengthOrWithTheConnection) {
  const std::string head =
      "HTTP/1.1 404 Not Found\r\ncontent-LENGTH:  2 \r\nContent-Type: a/b\r\n\r\n";
  for (std::size_t size = 0; size < head.size() + 2; ++size) {
    const auto part = parse_response((head + "no").substr(0, size), false);
    ASSERT_TRUE(part.ok()) << size << part.status().message();
    EXPECT_FALSE(part->has_value()) << size;
    EXPECT_EQ(parse_response((head + "no").substr(0, size), true).status().code(), Code::kPeerLost);
  }
  const auto whole = parse_response(head + "no more", false);
  ASSERT_TRUE(whole.ok() && *whole);
  EXPECT_EQ((*whole)->status, 404);
  EXPECT_EQ((*whole)->type, "a/b");
  EXPECT_EQ((*whole)->body, "no");
  EXPECT_EQ(body_in("HTTP/1.0 200 OK\r\n\r\nall", false), "(none)");
  EXPECT_EQ(body_in("HTTP/1.0 200 OK\r\n\r\nall", true), "all");
}

TEST(HttpAnswer, WhatIsNoHttpIsTold) {
  for (const char* bytes :
       {"SSH-2.0-OpenSSH_9.2\r\n", "HTTP/2 200\r\n\r\n", "HTTP/1.1 abc OK\r\n\r\n",
        "HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"}) {
    EXPECT_EQ(parse_response(bytes, false).status().code(), Code::kCorrupt) << bytes;
  }
  const std::string endless = "HTTP/1.1 200 OK\r\nX: " + std::string(kMaxAnswerBytes, 'x');
  EXPECT_EQ(parse_response(endless, false).status().code(), Code::kCorrupt);
}

TEST(HttpGet, ReadsAPageOfAnySize) {
  const auto server = serve_with("");
  EXPECT_EQ(http_get(page_of(*server, "/large"), soon()).take_or_throw().body.size(), kLarge);
}

TEST(HttpGet, SaysTheToken) {
  const auto server = serve_with(kToken);
  EXPECT_EQ(http_get(page_of(*server, "/"), soon()).take_or_throw().status, 401);
  EXPECT_EQ(http_get(page_of(*server, "/", "5f5f"), soon()).take_or_throw().status, 401);
  EXPECT_EQ(http_get(page_of(*server, "/", kToken), soon()).take_or_throw().status, 200);
}

TEST(HttpGet, NobodyListens) {
  auto server = serve_with("");
  const HttpGet::Options gone = page_of(*server, "/");
  server.reset();
  const Status told = http_get(gone, soon()).status();
  EXPECT_EQ(told.code(), Code::kNotFound);
  EXPECT_THAT(told.message(), HasSubstr("refused"));
}

TEST(HttpGet, SomebodyListensAndSaysNothing) {
  const Descriptor silent =
      transport::listen_tcp({"127.0.0.1", 0}, {.first = 0, .last = 0}).take_or_throw();
  const std::string at = transport::local_address_of(silent.get()).take_or_throw().to_string();
  const auto answer =
      http_get({.address = transport::parse_host_port(at).take_or_throw(), .path = "/"},
               Deadline::after(std::chrono::milliseconds(20)));
  EXPECT_EQ(answer.status().code(), Code::kDeadlineExceeded);
}

/// A request for a page of the end that the server has.
HttpGet ask_for_end(const HttpServer& server) {
  HttpGet get = HttpGet::start(page_of(server, "/end")).take_or_throw();
  while (get.events() != POLLIN) {
    EXPECT_FALSE(get.step().take_or_throw());
  }
  // requests are read in the order of their connections
  EXPECT_TRUE(http_get(page_of(server, "/"), soon()).ok());
  return get;
}

HttpResponse wait_for(HttpGet& get) {
  for (;;) {
    if (auto answer = get.step().take_or_throw()) return *answer;
  }
}

TEST(HttpServer, APageOfTheEndIsMadeWhenTheServerEnds) {
  auto server = serve_with("");
  HttpGet get = ask_for_end(*server);
  EXPECT_FALSE(get.step().take_or_throw());
  const int before = std::stoi(http_get(page_of(*server, "/"), soon()).take_or_throw().body);
  server.reset();
  const HttpResponse answer = wait_for(get);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(std::stoi(answer.body), before + 1);
}

TEST(HttpServer, APageOfTheEndIsMadeWhenTheTimeOfItsConnectionEnds) {
  const auto server = serve_with("", std::chrono::milliseconds(50));
  HttpGet get = HttpGet::start(page_of(*server, "/end")).take_or_throw();
  EXPECT_EQ(wait_for(get).status, 200);
}

}  // namespace
}  // namespace stormo::observe
