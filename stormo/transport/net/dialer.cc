#include <poll.h>
#include <stormo/base/check.h>
#include <stormo/transport/net/dialer.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace stormo::transport {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(2);
constexpr Duration kLongestBackoff = std::chrono::milliseconds(200);
/// After an answer by a stranger: each attempt costs both sides a line in a log.
constexpr Duration kStrangerBackoff = std::chrono::milliseconds(500);

}  // namespace

Dialer::Dialer(Options options) : options_(std::move(options)), backoff_(kFirstBackoff) {
  STORMO_CHECK(!options_.addresses.empty(), "a dialer needs an address");
}

short Dialer::poll_events() const { return stage_ == Stage::kConnecting ? POLLOUT : POLLIN; }

bool Dialer::step(TimePoint now) {
  if (stage_ == Stage::kIdle && now >= next_attempt_) start(now);
  if (stage_ == Stage::kConnecting && check_connected(now)) stage_ = Stage::kHandshaking;
  while (stage_ == Stage::kHandshaking && shake_hands(now)) {
  }
  if (stage_ == Stage::kSecuring) secure(now);
  return finished();
}

void Dialer::start(TimePoint now) {
  const SocketAddress& to = options_.addresses[attempt_ % options_.addresses.size()];
  Result<Descriptor> socket = start_connect(to);
  if (!socket.ok()) return retry_connect(now, errno, socket.status());
  socket_ = std::move(*socket);
  stage_ = Stage::kConnecting;
}

void Dialer::retry(TimePoint now, Status why) {
  last_ = std::move(why);
  unheard_ = 0;
  if (last_.code() == Code::kRefused) refusal_ = last_.message();
  tls_.reset();
  socket_.reset();
  handshake_.reset();
  stage_ = Stage::kIdle;
  ++attempt_;
  next_attempt_ = now + (last_.code() == Code::kRefused ? kStrangerBackoff : backoff_);
  backoff_ = std::min(2 * backoff_, kLongestBackoff);
}

/// `error`: that of connect().
void Dialer::retry_connect(TimePoint now, int error, Status why) {
  const std::size_t unheard = error == ECONNREFUSED ? unheard_ + 1 : 0;
  retry(now, std::move(why));
  unheard_ = unheard;
}

bool Dialer::check_connected(TimePoint now) {
  pollfd p{socket_.get(), POLLOUT, 0};
  if (::poll(&p, 1, 0) <= 0) return false;
  const SocketAddress& to = options_.addresses[attempt_ % options_.addresses.size()];
  if (const Status outcome = connect_outcome(socket_.get()); !outcome.ok()) {
    retry_connect(now, errno, outcome.within("connect to " + to.to_string()));
    return false;
  }
  if (to.family() == AF_UNIX) {
    if (const Status same = check_same_user(socket_.get()); !same.ok()) {
      retry(now, same.within(to.to_string()));
      return false;
    }
  } else {
    tune_tcp(socket_.get());
  }
  options_.hello.tls = tls_wish(socket_.get(), options_.tls);
  handshake_ = Handshake::as_client(options_.secret, options_.hello, random_nonce());
  return flush(now);
}

bool Dialer::flush(TimePoint now) {
  const std::span<const std::byte> out = handshake_->output();
  if (out.empty()) return true;
  const ssize_t n = ::send(socket_.get(), out.data(), out.size(), MSG_NOSIGNAL);
  if (n != static_cast<ssize_t>(out.size())) {
    retry(now, io_error("the peer closed the connection during the handshake"));
    return false;
  }
  handshake_->sent(out.size());
  return true;
}

/// One read and its answer; false when there is nothing more to do now.
bool Dialer::shake_hands(TimePoint now) {
  std::array<std::byte, 128> buffer;
  const std::size_t want = std::min(handshake_->wanted(), buffer.size());
  const ssize_t n = ::recv(socket_.get(), buffer.data(), want, 0);
  if (n < 0 && errno == EINTR) return true;
  if (n < 0 && errno == EAGAIN) return false;
  if (n <= 0) {
    // No place for us, or the listener of a process that has just ended: try again.
    retry(now, io_error("the peer closed the connection during the handshake"));
    return false;
  }
  handshake_->receive(std::span(buffer).first(static_cast<std::size_t>(n)));
  if (handshake_->state() == Handshake::State::kRefused) {
    const std::span<const std::byte> out = handshake_->output();
    (void)::send(socket_.get(), out.data(), out.size(), MSG_NOSIGNAL);
    Status why(Code::kRefused, handshake_->reason());
    if (!handshake_->authentic_refusal()) {
      retry(now, std::move(why));
      return false;
    }
    last_ = std::move(why);
    stage_ = Stage::kRefused;
    return false;
  }
  if (!flush(now)) return false;
  if (handshake_->state() != Handshake::State::kAccepted) return true;
  stage_ = Stage::kConnected;
  if (handshake_->is_tls_next()) {
    tls_ =
        std::make_unique<TlsStream>(socket_.get(), TlsStream::Role::kClient, handshake_->tls_key());
    stage_ = Stage::kSecuring;
  }
  return false;
}

void Dialer::secure(TimePoint now) {
  const Result<bool> done = tls_->shake_hands();
  if (!done.ok()) return retry(now, done.status());
  if (*done) stage_ = Stage::kConnected;
}

Result<Channel> Dialer::take() {
  STORMO_CHECK(finished(), "take() of an unfinished connection");
  if (stage_ == Stage::kRefused) return last_;
  return Channel(std::move(socket_), std::move(tls_));
}

std::string Dialer::last_failure() const {
  const std::string before =
      refusal_.empty() || last_.code() == Code::kRefused ? "" : "; before that: " + refusal_;
  if (stage_ == Stage::kHandshaking) {
    return "connected, but the peer does not answer the handshake" + before;
  }
  if (stage_ == Stage::kSecuring) {
    return "connected, but the peer does not answer the handshake of TLS" + before;
  }
  return (last_.ok() ? "no answer yet" : last_.message()) + before;
}

}  // namespace stormo::transport
