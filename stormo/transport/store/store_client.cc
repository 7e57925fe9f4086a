#include <fmt/format.h>
#include <poll.h>
#include <stormo/base/check.h>
#include <stormo/transport/net/dialer.h>
#include <stormo/transport/store/store_address.h>
#include <stormo/transport/store/store_message.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace stormo::transport {
namespace {

constexpr int kMaxPollMs = 1000;
constexpr Duration kUnacknowledgedLimit = std::chrono::seconds(5);

/// A reply on its way; owned by the waiting call.
struct Call {
  bool done = false;
  Code code = Code::kOk;
  std::string value;
};

class SocketStoreClient final : public StoreClient {
 public:
  SocketStoreClient(Descriptor socket, const Options& options)
      : socket_(std::move(socket)),
        address_(options.address.text),
        beat_(options.beat),
        prefix_(options.prefix) {}
  ~SocketStoreClient() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    if (thread_.joinable()) thread_.join();
  }

  Status start();

  Status set(std::string_view key, std::string_view value, Deadline by) override {
    return call({StoreOp::kSet, 0, 0, key, value}, by).status();
  }
  Result<std::string> set_if_absent(std::string_view key, std::string_view value,
                                    Deadline by) override {
    return call({StoreOp::kSetIfAbsent, 0, 0, key, value}, by);
  }
  Result<std::string> get(std::string_view key, Deadline by) override {
    return call({StoreOp::kGet, 0, 0, key, {}}, by);
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta, Deadline by) override {
    STORMO_ASSIGN_OR_RETURN(const std::string sum, call({StoreOp::kAdd, 0, delta, key, {}}, by));
    return std::int64_t{std::stoll(sum)};
  }
  Status erase(std::string_view key, Deadline by) override {
    return call({StoreOp::kErase, 0, 0, key, {}}, by).status();
  }
  Status set_will(std::string_view key, std::string_view value, Duration silence,
                  Deadline by) override {
    return call({StoreOp::kWill, 0, silence.count(), key, value}, by).status();
  }
  Status goodbye(Deadline by) override {
    return call({StoreOp::kGoodbye, 0, 0, {}, {}}, by).status();
  }

  Status watch(std::string_view key, std::function<void(std::string_view)> callback) override;
  void set_note_source(std::function<std::string()> source) override {
    const std::lock_guard lock(mutex_);
    note_source_ = std::move(source);
  }
  void on_lost(std::function<void(Status)> callback) override {
    {
      const std::lock_guard lock(mutex_);
      on_lost_ = std::move(callback);
    }
    wake();
  }
  std::string local_address() const override { return local_host_of(socket_.get()); }

 private:
  using WatchCallback = std::function<void(std::string_view)>;

  Result<std::string> call(StoreRequest request, Deadline by);
  static Status check_bounds(const StoreRequest& request);
  void wake() {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
  }
  void run();
  void turn(TimePoint& next_beat);
  void queue_beat(Duration late);
  Status write_queued();
  Result<bool> read_replies();
  void on_reply(const StoreReply& reply);
  void lose(Status why);
  void report_loss();

  Descriptor socket_;
  Descriptor wake_;
  const std::string address_;
  const Duration beat_;
  const std::string prefix_;
  FrameSplitter in_{"Store", kMaxStoreFrameBytes};  // client thread only
  std::array<char, 64 << 10> read_buffer_;
  std::string sending_;  // client thread only
  std::size_t sent_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable replied_;
  std::string queued_;
  std::uint32_t next_id_ = 1;
  std::unordered_map<std::uint32_t, Call*> calls_;
  std::unordered_map<std::uint32_t, std::shared_ptr<WatchCallback>> watches_;
  std::function<std::string()> note_source_;
  std::function<void(Status)> on_lost_;
  Status lost_;
  bool stopping_ = false;
  std::thread thread_;
};

Status SocketStoreClient::start() {
  wake_ = Descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake_.valid()) return errno_error("Store client: eventfd");
  limit_unacknowledged(socket_.get(), kUnacknowledgedLimit);
  thread_ = std::thread([this] { run(); });
  return {};
}

Status SocketStoreClient::check_bounds(const StoreRequest& request) {
  const bool needs_key = request.op != StoreOp::kGoodbye;
  const std::size_t max_value = request.op == StoreOp::kWill ? kMaxWillBytes : kMaxValueBytes;
  if (needs_key && (request.key.empty() || request.key.size() > kMaxKeyBytes)) {
    return invalid_argument(fmt::format("Store: a key has 1 to {} bytes, this one has {}",
                                        kMaxKeyBytes, request.key.size()));
  }
  if (request.value.size() > max_value) {
    return invalid_argument(fmt::format("Store: value of '{}' has {} bytes, at most {} are allowed",
                                        request.key, request.value.size(), max_value));
  }
  if (request.op == StoreOp::kWill && request.number < 0) {
    return invalid_argument("Store: the silence of a will cannot be negative");
  }
  return {};
}

Result<std::string> SocketStoreClient::call(StoreRequest request, Deadline by) {
  STORMO_CHECK(std::this_thread::get_id() != thread_.get_id(),
               "a blocking Store call inside one of the client's own callbacks");
  const std::string key = prefix_ + std::string(request.key);
  if (!request.key.empty()) request.key = key;
  STORMO_RETURN_IF_ERROR(check_bounds(request));
  Call waiting;
  std::unique_lock lock(mutex_);
  if (!lost_.ok()) return lost_;
  request.id = next_id_++;
  calls_.emplace(request.id, &waiting);
  queued_ += encode(request);
  wake();
  const auto ready = [&] { return waiting.done || !lost_.ok(); };
  if (by.is_never()) {
    replied_.wait(lock, ready);
  } else {
    replied_.wait_until(lock, by.when(), ready);
  }
  calls_.erase(request.id);
  if (waiting.done) {
    if (waiting.code != Code::kOk) return Status(waiting.code, waiting.value);
    return std::move(waiting.value);
  }
  if (!lost_.ok()) return lost_;
  if (request.op == StoreOp::kGet) {
    queued_ += encode(StoreRequest{StoreOp::kCancel, request.id, 0, {}, {}});
    wake();
  }
  return Status(Code::kDeadlineExceeded,
                request.op == StoreOp::kGet
                    ? fmt::format("nobody has set '{}' in the Store at {}", request.key, address_)
                    : fmt::format("the Store at {} does not answer", address_));
}

Status SocketStoreClient::watch(std::string_view key, WatchCallback callback) {
  const std::string full_key = prefix_ + std::string(key);
  StoreRequest request{StoreOp::kWatch, 0, 0, full_key, {}};
  STORMO_RETURN_IF_ERROR(check_bounds(request));
  const std::lock_guard lock(mutex_);
  if (!lost_.ok()) return lost_;
  request.id = next_id_++;
  watches_.emplace(request.id, std::make_shared<WatchCallback>(std::move(callback)));
  queued_ += encode(request);
  wake();
  return {};
}

void SocketStoreClient::run() {
  TimePoint next_beat{};
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    turn(next_beat);
  }
}

/// Waits for something to do and does it.
void SocketStoreClient::turn(TimePoint& next_beat) {
  bool lost = false;
  {
    const std::lock_guard lock(mutex_);
    lost = !lost_.ok();
  }
  const RealClock clock;
  const bool unsent = sent_ < sending_.size();
  const short events = static_cast<short>(POLLIN | (unsent ? POLLOUT : 0));
  std::array<pollfd, 2> fds{pollfd{wake_.get(), POLLIN, 0},
                            pollfd{lost ? -1 : socket_.get(), events, 0}};
  const int timeout = lost ? -1 : poll_timeout(clock.now(), next_beat, kMaxPollMs);
  if (::poll(fds.data(), fds.size(), timeout) < 0) return;
  if (fds[0].revents != 0) {
    std::uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof count);
  }
  if (lost) return report_loss();
  if (const TimePoint now = clock.now(); now >= next_beat) {
    const bool first = next_beat == TimePoint{};
    queue_beat(first ? Duration::zero() : now - next_beat);
    next_beat = now + beat_;
  }
  // Read first: what the server said before it died still counts.
  Status done = fds[1].revents != 0 ? read_replies().status() : Status();
  if (done.ok()) done = write_queued();
  if (!done.ok()) lose(std::move(done));
}

/// `late`: how long this thread was not run after it wanted to beat.
void SocketStoreClient::queue_beat(Duration late) {
  std::function<std::string()> source;
  {
    const std::lock_guard lock(mutex_);
    source = note_source_;
  }
  std::string note = source ? source() : std::string();
  if (note.size() > kMaxNoteBytes) note.resize(kMaxNoteBytes);
  const std::lock_guard lock(mutex_);
  queued_ += encode(StoreRequest{StoreOp::kBeat, 0, late.count(), {}, note});
}

Status SocketStoreClient::write_queued() {
  for (;;) {
    if (sent_ == sending_.size()) {
      sending_.clear();
      sent_ = 0;
      const std::lock_guard lock(mutex_);
      sending_.swap(queued_);
    }
    if (sending_.empty()) return {};
    const ssize_t n =
        ::send(socket_.get(), sending_.data() + sent_, sending_.size() - sent_, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return {};
    if (n < 0) {
      const Status why = io_error(std::strerror(errno));
      // The last words of a server that is gone may still wait to be read.
      for (;;) {
        STORMO_ASSIGN_OR_RETURN(const bool more, read_replies());
        if (!more) return why;
      }
    }
    sent_ += static_cast<std::size_t>(n);
  }
}

/// Handles one buffer of input; false when there was none.
Result<bool> SocketStoreClient::read_replies() {
  const ssize_t n = ::recv(socket_.get(), read_buffer_.data(), read_buffer_.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n < 0) return io_error(std::strerror(errno));
  if (n == 0) return io_error("it closed the connection");
  in_.append({read_buffer_.data(), static_cast<std::size_t>(n)});
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const auto body, in_.next());
    if (!body) break;
    STORMO_ASSIGN_OR_RETURN(const StoreReply reply, decode_reply(*body));
    on_reply(reply);
  }
  return true;
}

void SocketStoreClient::on_reply(const StoreReply& reply) {
  std::shared_ptr<WatchCallback> callback;
  {
    const std::lock_guard lock(mutex_);
    if (reply.event) {
      const auto found = watches_.find(reply.id);
      if (found != watches_.end()) callback = found->second;
    } else if (const auto found = calls_.find(reply.id); found != calls_.end()) {
      *found->second = Call{true, reply.code, std::string(reply.value)};
      replied_.notify_all();
    }
  }
  if (callback) (*callback)(reply.value);
}

void SocketStoreClient::lose(Status why) {
  {
    const std::lock_guard lock(mutex_);
    lost_ =
        Status(Code::kPeerLost, fmt::format("lost the Store at {}: {}", address_, why.message()));
    replied_.notify_all();
  }
  report_loss();
}

void SocketStoreClient::report_loss() {
  std::function<void(Status)> callback;
  Status why;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    callback = std::exchange(on_lost_, nullptr);
    why = lost_;
  }
  if (callback) callback(why);
}

Result<Descriptor> dial(Dialer& dialer, std::string_view address, Deadline by) {
  const RealClock clock;
  while (!dialer.step(clock.now())) {
    const TimePoint now = clock.now();
    if (by.expired()) {
      return Status(Code::kDeadlineExceeded,
                    fmt::format("cannot reach the Store at {}: {}; check that its process runs and "
                                "that the address is right",
                                address, dialer.last_failure()));
    }
    pollfd p{dialer.fd(), dialer.poll_events(), 0};
    ::poll(&p, 1, poll_timeout(now, std::min(dialer.wake_at(), by.when()), kMaxPollMs));
  }
  Result<Descriptor> socket = dialer.take();
  if (socket.ok()) return socket;
  return socket.status().within(fmt::format("Store at {}", address));
}

}  // namespace

Result<std::unique_ptr<StoreClient>> StoreClient::connect(Options options, Deadline by) {
  STORMO_ASSIGN_OR_RETURN(const StoreEndpoint endpoint, parse_store_address(options.address));
  if (!endpoint.is_unix && options.secret.empty()) {
    return invalid_argument(fmt::format(
        "a Store on tcp ({}) needs the job's secret; pass it on as the launcher or rendezvous file "
        "gives it",
        options.address.text));
  }
  STORMO_ASSIGN_OR_RETURN(auto addresses, socket_addresses(endpoint));
  Hello hello;
  hello.purpose = Purpose::kStore;
  Dialer dialer({std::move(addresses), options.secret, hello});
  STORMO_ASSIGN_OR_RETURN(Descriptor socket, dial(dialer, options.address.text, by));
  auto client = std::make_unique<SocketStoreClient>(std::move(socket), options);
  STORMO_RETURN_IF_ERROR(client->start());
  return std::unique_ptr<StoreClient>(std::move(client));
}

}  // namespace stormo::transport
