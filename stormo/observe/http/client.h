#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>
#include <stormo/observe/http/response.h>
#include <stormo/transport/net/socket.h>

namespace stormo::observe {

/// Longest answer, with its head.
inline constexpr std::size_t kMaxAnswerBytes = std::size_t{16} << 20;

/// The answer that `bytes` begin with; nothing: it is not whole yet. `ended`: nothing more comes.
/// kCorrupt for what is no answer of HTTP/1, kPeerLost for one that was cut off.
Result<std::optional<HttpResponse>> parse_response(std::string_view bytes, bool ended);

/// One GET of a page, as far as it goes without waiting.
class HttpGet {
 public:
  struct Options {
    transport::HostPort address;
    std::string path;
    std::string token = {};  ///< empty: none
  };
  /// Begins to connect. A name is resolved, which may block. kNotFound.
  static Result<HttpGet> start(const Options& options);

  /// What to poll for before the next step().
  int fd() const { return socket_.get(); }
  short events() const;
  /// The answer, once it is there. kNotFound: nobody listens; kPeerLost: the connection ended
  /// before; else as parse_response().
  Result<std::optional<HttpResponse>> step();

 private:
  HttpGet(std::vector<transport::SocketAddress> addresses, std::string request)
      : addresses_(std::move(addresses)), request_(std::move(request)) {}
  Status connect_next(Status why);
  Result<bool> check_connected();
  Status send();
  Result<bool> receive();

  std::vector<transport::SocketAddress> addresses_;  // those that are not tried yet, the last first
  std::string request_;                              // what is not sent yet
  std::string answer_;
  Descriptor socket_;
  bool connected_ = false;
};

/// The same, all at once. kDeadlineExceeded too.
Result<HttpResponse> http_get(const HttpGet::Options& options, Deadline by);

}  // namespace stormo::observe
