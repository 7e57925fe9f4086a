#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include <stormo/base/descriptor.h>
#include <stormo/transport/net/socket.h>

namespace stormo::observe::test {

/// A connection to a server on this host, whose calls give up after ten seconds.
class Client {
 public:
  explicit Client(const std::string& address) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const transport::HostPort at = transport::parse_host_port(address).take_or_throw();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(at.port);
    ::inet_pton(AF_INET, at.host.c_str(), &to.sin_addr);
    const timeval limit{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
      throw std::runtime_error("connect to " + address);
    }
  }

  /// Whether all of it was taken.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }

  /// All that comes until the server closes the connection; throws when it does not.
  std::string rest() const {
    std::string all;
    std::array<char, 4096> bytes;
    for (;;) {
      const ssize_t n = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
      if (n < 0 && errno == EAGAIN) throw std::runtime_error("the connection stays open");
      if (n <= 0) return all;
      all.append(bytes.data(), static_cast<std::size_t>(n));
    }
  }

  int fd() const { return fd_.get(); }

 private:
  Descriptor fd_;
};

/// The whole answer to a GET; `more`: further headers.
inline std::string get(const std::string& address, const std::string& path,
                       const std::string& more = "") {
  const Client client(address);
  client.send("GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\n" + more + "\r\n");
  return client.rest();
}

inline std::string body_of(const std::string& answer) {
  const std::size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

}  // namespace stormo::observe::test
