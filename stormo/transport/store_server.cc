#include <fmt/format.h>
#include <stormo/base/check.h>
#include <stormo/transport/gate.h>
#include <stormo/transport/store_address.h>
#include <stormo/transport/store_protocol.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace stormo::transport {
namespace {

using SessionId = StoreState::SessionId;

constexpr std::size_t kMaxSessions = 16384;
constexpr std::size_t kMaxUnsentBytes = std::size_t{64} << 20;
constexpr std::size_t kReadBytes = 64 << 10;
constexpr int kTickMs = 250;
// Vanished hosts; a living server always reads, and so does a living client's thread.
constexpr Duration kUnacknowledgedLimit = std::chrono::seconds(5);
constexpr std::uint64_t kGateEvent = 0;
constexpr std::uint64_t kWakeEvent = 1;
constexpr SessionId kFirstSession = 2;

struct Session {
  Descriptor socket;
  std::string peer;
  FrameSplitter in;
  std::string out;
  std::size_t sent = 0;
  bool wants_write = false;
};

/// Shell around StoreState: sockets, the thread, and the clock.
class EpollStoreServer final : public StoreServer {
 public:
  ~EpollStoreServer() override {
    stopping_.store(true, std::memory_order_release);
    wake();
    if (thread_.joinable()) thread_.join();
  }

  Status open(Options options);

  StoreAddress address() const override { return address_; }

  void set(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    (void)state_.set(key, value);
    wake();
  }
  bool set_if_absent(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    const Result<bool> done = state_.set_if_absent(key, value);
    wake();
    return done.ok() && *done;
  }
  std::optional<std::string> get(std::string_view key) const override {
    const std::lock_guard lock(mutex_);
    return state_.get(key);
  }

 private:
  Result<Descriptor> listen(const StoreEndpoint& at, PortRange ports);
  bool watch_fd(int fd, std::uint64_t id, std::uint32_t events, int operation);
  void wake() {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
  }
  void run();
  int timeout_ms(TimePoint now);
  void admit(Gate::Visitor visitor, TimePoint now);
  void read_from(SessionId id, TimePoint now);
  Status handle_input(SessionId id, Session& s, std::string_view bytes, TimePoint now);
  void deliver(TimePoint now);
  bool flush(SessionId id, Session& s);
  void drop(SessionId id, std::string_view why, TimePoint now);

  Options options_;
  StoreAddress address_;
  Descriptor epoll_;
  Descriptor wake_;
  std::unique_ptr<Gate> gate_;
  std::unordered_map<SessionId, Session> sessions_;  // server thread only
  SessionId next_session_ = kFirstSession;
  std::array<char, kReadBytes> read_buffer_;
  RealClock clock_;
  mutable std::mutex mutex_;
  StoreState state_;  // guarded by mutex_
  std::atomic<bool> stopping_{false};
  std::thread thread_;
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
  return listen_unix(name);
}

Status EpollStoreServer::open(Options options) {
  options_ = std::move(options);
  STORMO_ASSIGN_OR_RETURN(const StoreEndpoint at, parse_store_endpoint(options_.listen));
  STORMO_ASSIGN_OR_RETURN(Descriptor listener, listen(at, options_.ports));
  epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = Descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll_.valid() || !wake_.valid()) return errno_error("Store: epoll and eventfd");
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
      !watch_fd(wake_.get(), kWakeEvent, EPOLLIN, EPOLL_CTL_ADD)) {
    return errno_error("Store: epoll_ctl");
  }
  thread_ = std::thread([this] { run(); });
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

void EpollStoreServer::run() {
  std::array<epoll_event, 256> events;
  while (!stopping_.load(std::memory_order_acquire)) {
    const int n = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                               timeout_ms(clock_.now()));
    const TimePoint now = clock_.now();
    for (int i = 0; i < n; ++i) {
      const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
      if (id == kWakeEvent) {
        std::uint64_t count = 0;
        (void)!::read(wake_.get(), &count, sizeof count);
      } else if (id != kGateEvent) {
        read_from(id, now);
      }
    }
    for (Gate::Visitor& visitor : gate_->step(now)) admit(std::move(visitor), now);
    // A beat that waits in a socket buffer is heard before its sender is judged.
    if (n < static_cast<int>(events.size())) {
      const std::lock_guard lock(mutex_);
      state_.tick(now);
    }
    deliver(now);
  }
}

void EpollStoreServer::admit(Gate::Visitor visitor, TimePoint now) {
  const SessionId id = next_session_++;
  if (!watch_fd(visitor.socket.get(), id, EPOLLIN, EPOLL_CTL_ADD)) return;
  limit_unacknowledged(visitor.socket.get(), kUnacknowledgedLimit);
  Session& s = sessions_[id];
  s.socket = std::move(visitor.socket);
  s.peer = std::move(visitor.peer);
  const std::lock_guard lock(mutex_);
  state_.open(id, now);
}

void EpollStoreServer::read_from(SessionId id, TimePoint now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  Session& s = found->second;
  if (s.wants_write && !flush(id, s)) return drop(id, {}, now);
  // One buffer a turn: level-triggered epoll comes back for the rest, and nobody is starved.
  const ssize_t n = ::recv(s.socket.get(), read_buffer_.data(), read_buffer_.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return drop(id, {}, now);
  const std::string_view bytes(read_buffer_.data(), static_cast<std::size_t>(n));
  const Status done = handle_input(id, s, bytes, now);
  if (!done.ok()) drop(id, done.message(), now);
}

Status EpollStoreServer::handle_input(SessionId id, Session& s, std::string_view bytes,
                                      TimePoint now) {
  s.in.append(bytes);
  const std::lock_guard lock(mutex_);
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const auto body, s.in.next());
    if (!body) return {};
    STORMO_ASSIGN_OR_RETURN(const StoreRequest request, decode_request(*body));
    STORMO_RETURN_IF_ERROR(state_.receive(id, request, now));
  }
}

/// Sends what the state wants sent and reports what was set, until nothing new comes of it.
void EpollStoreServer::deliver(TimePoint now) {
  for (;;) {
    std::vector<StoreState::Delivery> deliveries;
    std::vector<StoreState::KeyValue> sets;
    {
      const std::lock_guard lock(mutex_);
      deliveries = state_.take_deliveries();
      sets = state_.take_sets();
    }
    if (deliveries.empty() && sets.empty()) return;
    for (StoreState::Delivery& d : deliveries) {
      const auto found = sessions_.find(d.to);
      if (found == sessions_.end()) continue;
      Session& s = found->second;
      s.out += d.frame;
      const bool overflows = s.out.size() - s.sent > kMaxUnsentBytes;
      if (overflows) {
        drop(d.to, "does not read its replies", now);
      } else if (!s.wants_write && !flush(d.to, s)) {
        drop(d.to, {}, now);
      }
    }
    if (!options_.on_set) continue;
    for (const auto& [key, value] : sets) options_.on_set(key, value);
  }
}

/// False when the connection is gone.
bool EpollStoreServer::flush(SessionId id, Session& s) {
  while (s.sent < s.out.size()) {
    const ssize_t n =
        ::send(s.socket.get(), s.out.data() + s.sent, s.out.size() - s.sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) return false;
    if (n < 0) break;
    s.sent += static_cast<std::size_t>(n);
  }
  const bool pending = s.sent < s.out.size();
  if (!pending) {
    s.out.clear();
    s.sent = 0;
  }
  if (pending != s.wants_write) {
    s.wants_write = pending;
    watch_fd(s.socket.get(), id, pending ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
  }
  return true;
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
