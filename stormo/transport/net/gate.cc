#include <fmt/format.h>
#include <poll.h>
#include <stormo/transport/net/gate.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace stormo::transport {
namespace {

constexpr Duration kOutOfDescriptorsPause = std::chrono::milliseconds(100);

std::string describe_unix_peer(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return "unix peer";
  return fmt::format("unix peer (process {}, user {})", peer.pid, peer.uid);
}

}  // namespace

Result<std::unique_ptr<Gate>> Gate::open(Options options) {
  std::unique_ptr<Gate> gate(new Gate);
  gate->options_ = std::move(options);
  gate->epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!gate->epoll_.valid()) return errno_error("epoll_create1");
  gate->listen(true);
  return gate;
}

Result<HostPort> Gate::listen(Options& options, const HostPort& address, PortRange ports) {
  STORMO_ASSIGN_OR_RETURN(options.listener, listen_tcp(address, ports));
  STORMO_ASSIGN_OR_RETURN(const SocketAddress bound, local_address_of(options.listener.get()));
  return parse_host_port(bound.to_string());
}

Gate::~Gate() = default;

void Gate::listen(bool on) {
  if (on == listening_ || !options_.listener.valid()) return;
  epoll_event event{};
  event.events = EPOLLIN;
  ::epoll_ctl(epoll_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, options_.listener.get(), &event);
  listening_ = on;
}

TimePoint Gate::wake_at(TimePoint now) const {
  TimePoint at = TimePoint::max();
  if (!pending_.empty()) {
    const Duration patience = pending_.size() < kMaxUnproven ? kHandshakeTime : kCrowdedGrace;
    at = std::max(pending_.front()->since + patience, now);
  }
  if (paused_until_ > now) at = std::min(at, paused_until_);
  return at;
}

std::vector<Gate::Visitor> Gate::step(TimePoint now) {
  std::vector<Visitor> admitted;
  std::array<epoll_event, kMaxUnproven + 1> events;
  const int n = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < n; ++i) {
    auto* const p = static_cast<Pending*>(events[static_cast<std::size_t>(i)].data.ptr);
    if (p != nullptr) progress(*p, admitted);
  }
  expire(now);
  accept_waiting(now, admitted);
  std::erase_if(pending_, [](const auto& p) { return p->gone; });
  return admitted;
}

void Gate::expire(TimePoint now) {
  for (auto& p : pending_) {
    if (!p->gone && now - p->since >= kHandshakeTime) {
      refuse(*p,
             fmt::format("no complete handshake within {} s",
                         std::chrono::duration_cast<std::chrono::seconds>(kHandshakeTime).count()));
    }
  }
  std::erase_if(pending_, [](const auto& p) { return p->gone; });
}

bool Gate::make_room(TimePoint now) {
  if (pending_.size() < kMaxUnproven) return true;
  std::erase_if(pending_, [](const auto& p) { return p->gone; });
  if (pending_.size() < kMaxUnproven) return true;
  auto oldest = std::find_if(pending_.begin(), pending_.end(),
                             [](const auto& p) { return !p->handshake.has_value(); });
  if (oldest == pending_.end() || now - (*oldest)->since < kCrowdedGrace) oldest = pending_.begin();
  if (now - (*oldest)->since < kCrowdedGrace) return false;
  pollfd waiting{options_.listener.get(), POLLIN, 0};
  if (::poll(&waiting, 1, 0) <= 0) return true;
  refuse(**oldest, "made room for others before its handshake was complete");
  pending_.erase(oldest);
  return true;
}

void Gate::accept_waiting(TimePoint now, std::vector<Visitor>& admitted) {
  if (now < paused_until_ || !options_.listener.valid()) return;
  // Bounded, so that a flood of connections cannot keep the owner from its other work.
  for (std::size_t n = 0; n < kMaxUnproven; ++n) {
    if (!make_room(now)) {
      listen(false);  // who waits in the kernel's queue must not keep epoll awake
      return;
    }
    SocketAddress address;
    Result<Descriptor> socket = accept_from(options_.listener.get(), &address);
    if (!socket.ok()) {
      paused_until_ = now + kOutOfDescriptorsPause;
      listen(false);
      return;
    }
    if (!socket->valid()) break;
    enter(std::move(*socket), address, now, admitted);
  }
  listen(true);
}

void Gate::enter(Descriptor socket, const SocketAddress& address, TimePoint now,
                 std::vector<Visitor>& admitted) {
  const int fd = socket.get();
  auto p = std::make_unique<Pending>(Pending{std::move(socket), address, now});
  if (options_.is_unix) {
    if (const Status same = check_same_user(fd); !same.ok()) return refuse(*p, same.message());
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = p.get();
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return refuse(*p, std::strerror(errno));
  }
  pending_.push_back(std::move(p));
  progress(*pending_.back(), admitted);  // a real peer's first words are often there already
}

/// Whether `p` has said anything; only then it gets a handshake, which costs a nonce and its
/// buffer.
bool Gate::begin(Pending& p) {
  char first = 0;
  const ssize_t n = ::recv(p.socket.get(), &first, 1, MSG_PEEK);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    refuse(p, "closed the connection during the handshake");
    return false;
  }
  if (!options_.is_unix) tune_tcp(p.socket.get());
  p.handshake = Handshake::as_server(options_.secret, options_.purpose, random_nonce(),
                                     kProtocolVersion, tls_wish(p.socket.get(), options_.tls));
  return true;
}

void Gate::progress(Pending& p, std::vector<Visitor>& admitted) {
  if (!p.handshake && !begin(p)) return;
  std::array<std::byte, 128> buffer;
  while (p.handshake->wanted() > 0) {
    const std::size_t want = std::min(p.handshake->wanted(), buffer.size());
    const ssize_t n = ::recv(p.socket.get(), buffer.data(), want, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return refuse(p, "closed the connection during the handshake");
    p.handshake->receive(std::span(buffer).first(static_cast<std::size_t>(n)));
    conclude(p);
    if (p.gone) return;
  }
  if (p.handshake->state() != Handshake::State::kAccepted || !secure(p)) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, p.socket.get(), nullptr);
  std::string name = name_of(p);
  admitted.push_back(
      {Channel(std::move(p.socket), std::move(p.tls)), p.handshake->hello(), std::move(name)});
  p.gone = true;
}

/// True once nothing is left of the handshake of TLS.
bool Gate::secure(Pending& p) {
  if (!p.handshake->is_tls_next()) return true;
  if (!p.tls) {
    p.tls = std::make_unique<TlsStream>(p.socket.get(), TlsStream::Role::kServer,
                                        p.handshake->tls_key());
  }
  const Result<bool> done = p.tls->shake_hands();
  if (!done.ok()) refuse(p, done.status().message());
  return done.ok() && *done;
}

std::string Gate::name_of(const Pending& p) const {
  return options_.is_unix ? describe_unix_peer(p.socket.get()) : p.address.to_string();
}

/// Answers what was received; leaves `p` gone when that was a refusal.
void Gate::conclude(Pending& p) {
  if (p.handshake->state() == Handshake::State::kProven) {
    const Refusal refusal = options_.admit ? options_.admit(p.handshake->hello()) : Refusal::kNone;
    refusal == Refusal::kNone ? p.handshake->admit() : p.handshake->refuse(refusal);
  }
  const bool sent = flush(p);
  if (p.handshake->state() == Handshake::State::kRefused) {
    // Unread input would turn the close into a reset that overtakes the answer.
    std::array<std::byte, 4096> rest;
    ::shutdown(p.socket.get(), SHUT_WR);
    (void)::recv(p.socket.get(), rest.data(), rest.size(), 0);
    return refuse(p, p.handshake->reason());
  }
  if (!sent) refuse(p, "does not read the handshake");
}

bool Gate::flush(Pending& p) {
  // A fresh socket takes all of these few bytes, or its peer is up to no good.
  const std::span<const std::byte> out = p.handshake->output();
  if (out.empty()) return true;
  const ssize_t n = ::send(p.socket.get(), out.data(), out.size(), MSG_NOSIGNAL);
  if (n != static_cast<ssize_t>(out.size())) return false;
  p.handshake->sent(out.size());
  return true;
}

void Gate::refuse(Pending& p, std::string_view reason) {
  p.gone = true;
  if (options_.on_refused) {
    options_.on_refused(fmt::format("refused {}: {}", name_of(p), reason));
  }
  p.socket.reset();
}

void Gate::close(std::string_view reason) {
  listen(false);
  options_.listener.reset();
  for (auto& p : pending_) {
    if (!p->gone) refuse(*p, reason);
  }
  pending_.clear();
}

}  // namespace stormo::transport
