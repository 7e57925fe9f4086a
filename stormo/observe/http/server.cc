#include <stormo/observe/http/server.h>

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

namespace stormo::observe {
namespace {

using transport::SocketAddress;

/// For so long a process without descriptors accepts nobody.
constexpr Duration kRest = std::chrono::milliseconds(100);
constexpr int kNice = 10;  // the ranks of a host need its cores more than a reader does

std::string_view reason_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    default: return "Internal Server Error";
  }
}

std::string text_of(const HttpResponse& r) {
  std::string_view more;
  if (r.status == 401) more = "WWW-Authenticate: Bearer\r\n";
  if (r.status == 405) more = "Allow: GET\r\n";
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\n{}Connection: close\r\n\r\n{}",
      r.status, reason_of(r.status), r.type, r.body.size(), more, r.body);
}

bool is_loopback(const SocketAddress& a) {
  if (a.family() == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&a.storage)->sin6_addr) != 0;
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&a.storage);
  return a.family() == AF_INET && (ntohl(v4->sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
}

bool is_later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options, Handler handler) {
  constexpr transport::PortRange kAnyFree{.first = 0, .last = 0};
  STORMO_ASSIGN_OR_RETURN(Descriptor listener, transport::listen_tcp(options.address, kAnyFree));
  STORMO_ASSIGN_OR_RETURN(const SocketAddress at, transport::local_address_of(listener.get()));
  if (options.token.empty() && !is_loopback(at)) {
    return invalid_argument(
        fmt::format("{} can be reached from other machines, so readers need a token",
                    to_string(options.address)));
  }
  Descriptor wake(::eventfd(0, EFD_CLOEXEC));
  if (!wake.valid()) return errno_error("eventfd");
  std::unique_ptr<HttpServer> server(
      new HttpServer(std::move(listener), std::move(wake), std::move(options), std::move(handler)));
  server->address_ = at.to_string();
  server->thread_ = std::thread([s = server.get()] { s->serve(); });
  return server;
}

HttpServer::HttpServer(Descriptor listener, Descriptor wake, HttpOptions options, Handler handler)
    : listener_(std::move(listener)),
      wake_(std::move(wake)),
      guard_{.token = std::move(options.token), .host_name = std::move(options.address.host)},
      most_time_(options.most_time),
      handler_(std::move(handler)) {}

HttpServer::~HttpServer() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void HttpServer::serve() {
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  while (wait()) {
    try {
      const TimePoint now = std::chrono::steady_clock::now();
      std::erase_if(connections_, [&](Connection& c) {
        if (now >= c.ends) end(c);
        return now >= c.ends || !advance(c);
      });
      accept_all();
    } catch (const std::exception&) {  // no memory: whoever has asked may ask again
      connections_.clear();
    }
  }
  for (Connection& c : connections_) end(c);
}

/// Until there is something to do. False: the server is to end.
bool HttpServer::wait() {
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0},
                             {exhausted_ ? -1 : listener_.get(), POLLIN, 0}};
  const TimePoint now = std::chrono::steady_clock::now();
  TimePoint next = exhausted_ ? now + kRest : TimePoint::max();
  for (const Connection& c : connections_) {
    fds.push_back({c.fd.get(), static_cast<short>(c.out.empty() ? POLLIN : POLLOUT), 0});
    next = std::min(next, c.ends);
  }
  constexpr int kMinuteMs = 60'000;
  const int ms = next == TimePoint::max() ? -1 : transport::poll_timeout(now, next, kMinuteMs);
  exhausted_ = false;
  (void)::poll(fds.data(), fds.size(), ms);
  return fds[0].revents == 0;
}

void HttpServer::accept_all() {
  for (int i = 0; i < kMostConnections; ++i) {  // then those that are there have their turn
    SocketAddress peer;
    Result<Descriptor> fd = transport::accept_from(listener_.get(), &peer);
    exhausted_ = !fd.ok();
    if (!fd.ok() || !fd->valid()) return;
    if (connections_.size() == kMostConnections) connections_.pop_front();
    connections_.push_back(
        {.fd = std::move(*fd), .ends = std::chrono::steady_clock::now() + most_time_});
  }
}

/// As far as it goes without waiting. False: the connection is over.
bool HttpServer::advance(Connection& c) { return c.out.empty() ? receive(c) : send(c); }

bool HttpServer::receive(Connection& c) {
  std::array<char, 4096> bytes;
  const ssize_t n = ::recv(c.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (n < 0) return is_later(errno);
  if (n == 0) return false;
  if (c.answered || c.held) return true;  // read and dropped: a reset would take the answer away
  c.in.append(bytes.data(), static_cast<std::size_t>(n));
  const std::optional<std::size_t> head = request_head(c.in);
  if (head.value_or(c.in.size()) > kMaxRequestBytes) {
    c.out = text_of({.status = 431, .body = "the request is too long\n"});
  } else if (head) {
    answer(c, c.in.substr(0, *head));
  } else {
    return true;
  }
  c.in.clear();
  return c.held || send(c);
}

bool HttpServer::send(Connection& c) {
  const std::string_view rest = std::string_view(c.out).substr(c.sent);
  const ssize_t n = ::send(c.fd.get(), rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0) return is_later(errno);
  c.sent += static_cast<std::size_t>(n);
  if (c.sent < c.out.size()) return true;
  c.out.clear();
  c.answered = true;
  return ::shutdown(c.fd.get(), SHUT_WR) == 0;
}

void HttpServer::answer(Connection& c, const std::string& head) const {
  Result<HttpRequest> request = parse_request(head);
  if (!request.ok()) {
    c.out = text_of({.status = 400, .body = request.status().message() + "\n"});
    return;
  }
  const std::optional<HttpResponse> refusal = refusal_of(*request, guard_);
  const HttpResponse page = refusal ? *refusal : handler_(*request);
  if (page.at_end) {
    c.held = *std::move(request);
  } else {
    c.out = text_of(page);
  }
}

/// What a held request waits for, as far as the socket takes it.
void HttpServer::end(Connection& c) try {
  if (!c.held) return;
  c.out = text_of(handler_(*std::exchange(c.held, std::nullopt)));
  (void)send(c);
} catch (const std::exception&) {  // no memory
}

}  // namespace stormo::observe
