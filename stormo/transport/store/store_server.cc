#include <fmt/format.h>
#include <stormo/base/check.h>
#include <stormo/transport/call/frame.h>
#include <stormo/transport/call/loop_thread.h>
#include <stormo/transport/net/gate.h>
#include <stormo/transport/store/peer_activity.h>
#include <stormo/transport/store/store_address.h>
#include <stormo/transport/store/store_protocol.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace stormo::transport {
namespace {

using SessionId = StoreState::SessionId;

constexpr std::size_t kMaxSessions = 16384;
/// A session whose unsent replies exceed this is not read from until it has taken some.
constexpr std::size_t kPauseBytes = std::size_t{2} << 20;
/// What others set comes on top: a session that leaves so much unread is dropped, and so is the one
/// that leaves most when values that are kept for such sessions alone exceed the second bound.
constexpr std::size_t kMaxUnsentBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxUnsentInAll = std::size_t{256} << 20;
/// What a queued reply takes besides its value.
constexpr std::size_t kReplyBytes = 128;
constexpr std::size_t kReadBytes = 64 << 10;
constexpr int kTickMs = 250;
// Vanished hosts; a living server always reads, and so does a living client's thread.
constexpr Duration kVisitorUnacknowledgedLimit = std::chrono::seconds(5);
constexpr std::uint64_t kGateEvent = 0;
constexpr std::uint64_t kWakeEvent = 1;
constexpr SessionId kFirstSession = 2;

struct Session {
  Channel socket;
  std::string peer;
  PeerActivity process{0};
  FrameSplitter in{kStoreProtocol, kMaxStoreFrameBytes};
  std::deque<StoreState::Delivery> out;
  std::size_t sent = 0;    // of the first of `out`
  std::size_t unsent = 0;  // bytes that `out` stands for
  bool paused = false;
  std::uint32_t events = EPOLLIN;
};

/// Shell around StoreState: sockets, the thread, and the clock.
class EpollStoreServer final : public StoreServer {
 public:
  ~EpollStoreServer() override {
    loop_.stop();
    if (!socket_file_.empty()) (void)::unlink(socket_file_.c_str());
  }

  Status open(Options options);

  StoreAddress address() const override { return address_; }

  void set(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    (void)state_.set(key, value);
    loop_.wake();
  }
  bool set_if_absent(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    const Result<bool> done = state_.set_if_absent(key, value);
    loop_.wake();
    return done.ok() && *done;
  }
  std::optional<std::string> get(std::string_view key) const override {
    const std::lock_guard lock(mutex_);
    return state_.get(key);
  }
  void when_deserted(std::function<void()> callback) override {
    const std::lock_guard lock(mutex_);
    deserted_ = std::move(callback);
    loop_.wake();
  }

 private:
  Result<Descriptor> listen(const StoreEndpoint& at, PortRange ports);
  bool watch_fd(int fd, std::uint64_t id, std::uint32_t events, int operation);
  void turn();
  void look_whether_deserted(bool nothing_else);
  int timeout_ms(TimePoint now);
  void admit(Gate::Visitor visitor, TimePoint now);
  void serve(SessionId id, std::uint32_t events, TimePoint now);
  void go_on(SessionId id, Session& s, TimePoint now);
  Status handle_input(SessionId id, Session& s, TimePoint now);
  void queue_deliveries();
  void deliver(TimePoint now);
  void send_to(SessionId id, TimePoint now);
  bool too_much_unsent() const;
  void drop_the_slowest(TimePoint now);
  bool flush(SessionId id, Session& s);
  void watch_session(SessionId id, Session& s);
  void drop(SessionId id, std::string_view why, TimePoint now);

  Options options_;
  StoreAddress address_;
  std::string socket_file_;
  Descriptor epoll_;
  std::unique_ptr<Gate> gate_;
  std::unordered_map<SessionId, Session> sessions_;  // server thread only
  std::vector<SessionId> to_flush_;
  SessionId next_session_ = kFirstSession;
  std::array<char, kReadBytes> read_buffer_;
  RealClock clock_;
  mutable std::mutex mutex_;
  StoreState state_;                // guarded by mutex_
  std::function<void()> deserted_;  // guarded by mutex_
  LoopThread loop_;
};

Result<Descriptor> EpollStoreServer::listen(const StoreEndpoint& at, PortRange ports) {
  if (!at.is_unix) {
    if (options_.secret.empty()) {
      return invalid_argument(
          "a Store on tcp needs a secret; give one, or listen on a Unix socket (unix:)");
    }
    STORMO_ASSIGN_OR_RETURN(Descriptor fd, listen_tcp(at.tcp, ports));
    STORMO_ASSIGN_OR_RETURN(const SocketAddress bound, local_address_of(fd.get()));
    address_.text = "tcp:" + bound.to_string();
    return fd;
  }
  const std::string name =
      at.unix_name.empty() ? "stormo-" + Secret::random().to_hex().substr(0, 24) : at.unix_name;
  address_.text = "unix:" + name;
  Result<Descriptor> fd = listen_unix(name);
  if (fd.ok() && name.starts_with('/')) socket_file_ = name;
  return fd;
}

Status EpollStoreServer::open(Options options) {
  options_ = std::move(options);
  STORMO_ASSIGN_OR_RETURN(const StoreEndpoint at, parse_store_endpoint(options_.listen));
  STORMO_ASSIGN_OR_RETURN(Descriptor listener, listen(at, options_.ports));
  epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return errno_error("Store: epoll");
  STORMO_RETURN_IF_ERROR(loop_.status());
  Gate::Options gate;
  gate.listener = std::move(listener);
  gate.is_unix = at.is_unix;
  gate.secret = options_.secret;
  gate.purpose = Purpose::kStore;
  gate.on_refused = options_.on_refused;
  gate.admit = [this](const Hello&) {
    return sessions_.size() < kMaxSessions ? Refusal::kNone : Refusal::kFull;
  };
  STORMO_ASSIGN_OR_RETURN(gate_, Gate::open(std::move(gate)));
  if (!watch_fd(gate_->poll_fd(), kGateEvent, EPOLLIN, EPOLL_CTL_ADD) ||
      !watch_fd(loop_.fd(), kWakeEvent, EPOLLIN | EPOLLET, EPOLL_CTL_ADD)) {
    return errno_error("Store: epoll_ctl");
  }
  loop_.start([this] { turn(); });
  return {};
}

bool EpollStoreServer::watch_fd(int fd, std::uint64_t id, std::uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  return ::epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
}

int EpollStoreServer::timeout_ms(TimePoint now) {
  const std::lock_guard lock(mutex_);
  return poll_timeout(now, std::min(gate_->wake_at(now), state_.wake_at()), kTickMs);
}

void EpollStoreServer::turn() {
  std::array<epoll_event, 256> events;
  const int n = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                             timeout_ms(clock_.now()));
  const TimePoint now = clock_.now();
  bool woken = false;
  for (int i = 0; i < n; ++i) {
    const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
    if (id == kWakeEvent) {
      woken = true;
    } else if (id != kGateEvent) {
      serve(id, events[static_cast<std::size_t>(i)].events, now);
    }
  }
  for (Gate::Visitor& visitor : gate_->step(now)) admit(std::move(visitor), now);
  // A beat that waits in a socket buffer is heard before its sender is judged.
  if (n < static_cast<int>(events.size())) {
    const std::lock_guard lock(mutex_);
    state_.tick(now, [this](SessionId id) {
      const auto found = sessions_.find(id);
      return found != sessions_.end() && found->second.process.ran();
    });
  }
  deliver(now);
  look_whether_deserted(woken && n == 1);
}

/// Whoever came before the question is in the turn that it causes, or in an earlier one: a turn
/// that brings nothing else proves that nobody is left.
void EpollStoreServer::look_whether_deserted(bool nothing_else) {
  if (!sessions_.empty() || !gate_->idle()) return;
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (!deserted_) return;
    if (nothing_else) callback = std::exchange(deserted_, nullptr);
  }
  if (callback) return callback();
  loop_.wake();
}

void EpollStoreServer::admit(Gate::Visitor visitor, TimePoint now) {
  const SessionId id = next_session_++;
  if (!watch_fd(visitor.socket.fd(), id, EPOLLIN, EPOLL_CTL_ADD)) return;
  limit_unacknowledged(visitor.socket.fd(), kVisitorUnacknowledgedLimit);
  Session& s = sessions_[id];
  s.socket = std::move(visitor.socket);
  s.peer = std::move(visitor.peer);
  s.process = PeerActivity::of_socket(s.socket.fd());
  const std::lock_guard lock(mutex_);
  state_.open(id, now);
}

void EpollStoreServer::serve(SessionId id, std::uint32_t events, TimePoint now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  Session& s = found->second;
  if (s.paused && (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) return drop(id, {}, now);
  if (!s.paused) {
    // One buffer a turn: level-triggered epoll comes back for the rest, and nobody is starved.
    static_assert(kReadBytes >= Channel::kReadAhead);
    const iovec all{read_buffer_.data(), read_buffer_.size()};
    const ssize_t n = s.socket.receive({&all, 1});
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return drop(id, {}, now);
    if (n > 0) s.in.append({read_buffer_.data(), static_cast<std::size_t>(n)});
    const Status done = handle_input(id, s, now);
    if (!done.ok()) return drop(id, done.message(), now);
  }
  go_on(id, s, now);
}

/// Sends, and works off what was received, until all is done or the socket has to take more.
void EpollStoreServer::go_on(SessionId id, Session& s, TimePoint now) {
  for (;;) {
    if (!flush(id, s)) return drop(id, {}, now);
    // where the socket has taken all it will not call again
    if (!s.paused || s.unsent > kPauseBytes) return;
    const Status done = handle_input(id, s, now);
    if (!done.ok()) return drop(id, done.message(), now);
  }
}

/// Works off what was received, until the session has enough replies to read.
Status EpollStoreServer::handle_input(SessionId id, Session& s, TimePoint now) {
  const std::lock_guard lock(mutex_);
  for (s.paused = false; !s.paused; s.paused = s.unsent > kPauseBytes) {
    STORMO_ASSIGN_OR_RETURN(const auto body, s.in.next());
    if (!body) return {};
    STORMO_ASSIGN_OR_RETURN(const StoreRequest request,
                            decode<StoreRequest>(kStoreProtocol, *body));
    STORMO_RETURN_IF_ERROR(state_.receive(id, request, now));
    queue_deliveries();
  }
  return {};
}

/// Behind what each session has yet to be sent. The lock is held.
void EpollStoreServer::queue_deliveries() {
  for (StoreState::Delivery& d : state_.take_deliveries()) {
    const auto found = sessions_.find(d.to);
    if (found == sessions_.end()) continue;
    Session& s = found->second;
    s.unsent += d.size() + kReplyBytes;
    if (s.out.empty() || s.unsent > kMaxUnsentBytes) to_flush_.push_back(d.to);
    s.out.push_back(std::move(d));
  }
}

/// Sends what the state wants sent and reports what was set, until nothing new comes of it.
void EpollStoreServer::deliver(TimePoint now) {
  for (;;) {
    std::vector<StoreState::KeyValue> sets;
    {
      const std::lock_guard lock(mutex_);
      queue_deliveries();
      sets = state_.take_sets();
    }
    if (to_flush_.empty() && sets.empty()) return;
    for (const SessionId id : std::exchange(to_flush_, {})) send_to(id, now);
    if (too_much_unsent()) drop_the_slowest(now);
    if (!options_.on_set) continue;
    for (const auto& [key, value] : sets) options_.on_set(key, value);
  }
}

void EpollStoreServer::send_to(SessionId id, TimePoint now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  go_on(id, found->second, now);
}

bool EpollStoreServer::too_much_unsent() const {
  const std::lock_guard lock(mutex_);
  return state_.bytes_on_their_way() > kMaxUnsentInAll;
}

void EpollStoreServer::drop_the_slowest(TimePoint now) {
  const auto slowest = std::max_element(
      sessions_.begin(), sessions_.end(),
      [](const auto& a, const auto& b) { return a.second.unsent < b.second.unsent; });
  if (slowest != sessions_.end()) drop(slowest->first, "does not read its replies", now);
}

/// False when the connection is gone, or is to go.
bool EpollStoreServer::flush(SessionId id, Session& s) {
  while (!s.out.empty()) {
    const StoreState::Delivery& d = s.out.front();
    const std::size_t head = std::min(s.sent, d.head.size());
    const std::string_view value = d.value ? std::string_view(*d.value) : std::string_view();
    const std::string_view rest = value.substr(s.sent - head);
    std::array<iovec, 2> parts{iovec{const_cast<char*>(d.head.data()) + head, d.head.size() - head},
                               iovec{const_cast<char*>(rest.data()), rest.size()}};
    const ssize_t n = s.socket.send(parts);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) return false;
    if (n < 0) break;
    s.sent += static_cast<std::size_t>(n);
    if (s.sent < d.size()) continue;
    s.unsent -= d.size() + kReplyBytes;
    s.out.pop_front();
    s.sent = 0;
  }
  watch_session(id, s);
  if (s.unsent <= kMaxUnsentBytes) return true;
  if (options_.on_refused) {
    options_.on_refused(fmt::format("refused {}: does not read its replies", s.peer));
  }
  return false;
}

void EpollStoreServer::watch_session(SessionId id, Session& s) {
  // a paused session's end shows as EPOLLRDHUP, as nobody reads up to it
  const std::uint32_t in = s.paused ? EPOLLRDHUP : EPOLLIN;
  const std::uint32_t events = in | (s.out.empty() ? 0u : EPOLLOUT);
  if (events == s.events) return;
  s.events = events;
  watch_fd(s.socket.fd(), id, events, EPOLL_CTL_MOD);
}

/// `why` is empty for an ordinary end of the connection.
void EpollStoreServer::drop(SessionId id, std::string_view why, TimePoint now) {
  const auto found = sessions_.find(id);
  if (!why.empty() && options_.on_refused) {
    options_.on_refused(fmt::format("refused {}: {}", found->second.peer, why));
  }
  sessions_.erase(found);
  const std::lock_guard lock(mutex_);
  state_.close(id, now);
}

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::start(Options options) {
  auto server = std::make_unique<EpollStoreServer>();
  STORMO_RETURN_IF_ERROR(server->open(std::move(options)));
  return std::unique_ptr<StoreServer>(std::move(server));
}

}  // namespace stormo::transport
