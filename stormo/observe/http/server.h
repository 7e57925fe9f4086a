#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <stormo/base/clock.h>
#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>
#include <stormo/observe/http/guard.h>
#include <stormo/observe/http/request.h>
#include <stormo/observe/http/response.h>
#include <stormo/transport/net/socket.h>

namespace stormo::observe {

struct HttpOptions {
  transport::HostPort address;  ///< port 0: a free one
  std::string token = {};       ///< that readers must have; empty: none
  Duration most_time = std::chrono::seconds(5);
};

/// Serves pages over HTTP on a thread of its own: one GET for each connection. Who connects can
/// hold up neither the process nor other readers for long:
///  - a request has at most kMaxRequestBytes, and no body;
///  - a connection lasts at most HttpOptions::most_time, however slowly its bytes come or are
///  taken;
///  - there are at most kMostConnections; another one takes the place of the oldest.
class HttpServer {
 public:
  static constexpr int kMostConnections = 32;

  /// Makes the page for a request that the guard lets pass. Called on the thread of the server,
  /// also while it is destroyed: for the pages that come at the end.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  /// Listens. kInvalidArgument without a token on an address that other machines can reach.
  static Result<std::unique_ptr<HttpServer>> start(HttpOptions options, Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// "127.0.0.1:9464"
  const std::string& address() const { return address_; }

 private:
  struct Connection {
    Descriptor fd;
    TimePoint ends;                        // when it is closed in any case
    std::string in = {};                   // what has come of the request
    std::string out = {};                  // the answer, until all of it is sent
    std::optional<HttpRequest> held = {};  // a request whose answer comes at the end
    std::size_t sent = 0;                  // bytes of it
    bool answered = false;                 // nothing that comes matters any more
  };

  HttpServer(Descriptor listener, Descriptor wake, HttpOptions options, Handler handler);
  void serve();
  bool wait();
  void accept_all();
  bool advance(Connection& connection);
  bool receive(Connection& connection);
  bool send(Connection& connection);
  void answer(Connection& connection, const std::string& head) const;
  void end(Connection& connection);

  const Descriptor listener_;
  const Descriptor wake_;  // eventfd: ends the thread
  const HttpGuard guard_;
  const Duration most_time_;
  const Handler handler_;
  std::string address_;
  // of the thread
  std::list<Connection> connections_;  // the oldest first
  bool exhausted_ = false;             // no descriptors were left for another connection
  std::thread thread_;
};

}  // namespace stormo::observe
