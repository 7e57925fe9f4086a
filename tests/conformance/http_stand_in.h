#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <stormo/base/descriptor.h>
#include <stormo/transport/net/socket.h>

namespace stormo::membership::test {

/// A server on loopback that answers what the test wants, one request at a time.
class HttpStandIn {
 public:
  struct Request {
    std::string path, body;
  };
  /// The bytes of the answer; after them the connection is closed.
  using Answer = std::function<std::string(const Request&)>;

  explicit HttpStandIn(Answer answer)
      : answer_(std::move(answer)),
        listener_(transport::listen_tcp({.host = "127.0.0.1"}, {}).take_or_throw()),
        address_(transport::parse_host_port(
                     transport::local_address_of(listener_.get()).take_or_throw().to_string())
                     .take_or_throw()),
        thread_([this] { serve(); }) {}
  ~HttpStandIn() {
    ::shutdown(listener_.get(), SHUT_RDWR);  // accept() returns
    thread_.join();
  }
  const transport::HostPort& address() const { return address_; }

  static std::string http(int code, std::string_view body) {
    return "HTTP/1.1 " + std::to_string(code) +
           " Text\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           std::string(body);
  }

 private:
  void serve() {
    for (;;) {
      pollfd ready{listener_.get(), POLLIN, 0};
      (void)::poll(&ready, 1, -1);
      const Descriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client.valid()) return;
      const Request request = read_request(client.get());
      const std::string answer = answer_(request);
      (void)::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }

  static Request read_request(int fd) {
    static constexpr std::string_view kLength = "Content-Length: ";
    std::string text;
    std::size_t head = std::string::npos, whole = std::string::npos;
    while (text.size() < whole) {
      char bytes[65536];
      const ssize_t n = ::recv(fd, bytes, sizeof bytes, 0);
      if (n <= 0) return {};
      text.append(bytes, static_cast<std::size_t>(n));
      head = text.find("\r\n\r\n");
      if (head == std::string::npos) continue;
      whole = head + 4 + std::stoul(text.substr(text.find(kLength) + kLength.size()));
    }
    const std::size_t path = text.find(' ') + 1;
    return {.path = text.substr(path, text.find(' ', path) - path), .body = text.substr(head + 4)};
  }

  Answer answer_;
  Descriptor listener_;
  transport::HostPort address_;
  std::thread thread_;
};

}  // namespace stormo::membership::test
