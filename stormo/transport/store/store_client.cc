#include <fmt/format.h>
#include <poll.h>
#include <stormo/base/check.h>
#include <stormo/base/wait_until.h>
#include <stormo/transport/call/frame_connection.h>
#include <stormo/transport/call/loop_thread.h>
#include <stormo/transport/call/reply.h>
#include <stormo/transport/net/dialer.h>
#include <stormo/transport/store/peer_activity.h>
#include <stormo/transport/store/silence.h>
#include <stormo/transport/store/store_address.h>
#include <stormo/transport/store/store_message.h>
#include <stormo/transport/store/store_of_rank.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <unordered_map>

namespace stormo::transport {
namespace {

constexpr int kMaxPollMs = 1000;
constexpr Duration kUnacknowledgedLimit = std::chrono::seconds(5);

/// How the server is called in messages.
std::string name_of(const std::optional<ServingRank>& rank, const std::string& address) {
  if (!rank) return fmt::format("the Store at {}", address);
  return fmt::format("rank {}, which serves the Store at {}", rank->rank, address);
}

Status no_answer() {
  return io_error("it does not answer; its process is stopped, or its host cannot be reached");
}

class SocketStoreClient final : public StoreClient {
 public:
  SocketStoreClient(Channel socket, const Options& options, const std::optional<ServingRank>& rank)
      : connection_(std::move(socket), FrameSplitter(kStoreProtocol, kMaxStoreFrameBytes)),
        server_process_(PeerActivity::of_socket(connection_.fd())),
        address_(options.address.text),
        server_(name_of(rank, address_)),
        max_silence_(rank ? rank->silence : Duration::zero()),
        beat_(options.beat),
        prefix_(options.prefix) {}
  ~SocketStoreClient() override { loop_.stop(); }

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
  Status erase(std::string_view key, Deadline by) override {
    return call({StoreOp::kErase, 0, 0, key, {}}, by).status();
  }
  Status erase_if(std::string_view key, std::string_view value, Deadline by) override {
    return call({StoreOp::kEraseIf, 0, 0, key, value}, by).status();
  }
  Status set_will(std::string_view key, std::string_view value, Duration silence,
                  Deadline by) override {
    return call({StoreOp::kWill, 0, silence.count(), key, value}, by).status();
  }
  Result<std::string> append(std::string_view key, std::string_view text, Deadline by) override {
    return call({StoreOp::kAppend, 0, 0, key, text}, by);
  }
  Status goodbye(Deadline by) override;

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
    loop_.wake();
  }
  std::string local_address() const override { return local_host_of(connection_.fd()); }

 private:
  using WatchCallback = std::function<void(std::string_view)>;

  Result<std::string> call(StoreRequest request, Deadline by);
  static Status check_bounds(const StoreRequest& request);
  void queue(const StoreRequest& request);
  void turn();
  void queue_beat(Duration late);
  Status write_queued();
  Result<bool> read_replies();
  void on_reply(const Reply& reply);
  TimePoint wake_at() const;
  Status judge_silence(TimePoint now);
  void lose(const Status& why);
  void report_loss(const Status& lost);

  FrameConnection connection_;  // client thread only, but for fd(); so is what follows
  TimePoint next_beat_{};
  TimePoint last_turn_ = RealClock().now();
  Silence silence_{last_turn_};
  PeerActivity server_process_;
  std::uint32_t asked_ = 0;  // the beat whose answer is missing; 0: none is
  TimePoint asked_at_{};
  bool answers_beats_ = false;  // the server has answered one: it is expected to go on

  const std::string address_;
  const std::string server_;  // its name in messages
  const Duration max_silence_;
  const Duration beat_;
  const std::string prefix_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable replied_;
  std::vector<std::string> queued_;  // requests
  std::uint32_t next_id_ = 1;
  std::unordered_map<std::uint32_t, std::optional<Result<std::string>>*> calls_;  // the answers
  std::unordered_map<std::uint32_t, std::shared_ptr<WatchCallback>> watches_;
  std::function<std::string()> note_source_;
  std::function<void(Status)> on_lost_;
  Status lost_;
  LoopThread loop_;
};

Status SocketStoreClient::start() {
  STORMO_RETURN_IF_ERROR(loop_.status());
  limit_unacknowledged(connection_.fd(), kUnacknowledgedLimit);
  loop_.start([this] { turn(); });
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

/// The lock is held.
void SocketStoreClient::queue(const StoreRequest& request) {
  queued_.push_back(encode(request));
  loop_.wake();
}

Result<std::string> SocketStoreClient::call(StoreRequest request, Deadline by) {
  STORMO_CHECK(!loop_.is_this_thread(),
               "a blocking Store call inside one of the client's own callbacks");
  const std::string key = prefix_ + std::string(request.key);
  if (!request.key.empty()) request.key = key;
  STORMO_RETURN_IF_ERROR(check_bounds(request));
  std::optional<Result<std::string>> answer;
  std::unique_lock lock(mutex_);
  if (!lost_.ok()) return lost_;
  request.id = next_id_++;
  calls_.emplace(request.id, &answer);
  queue(request);
  (void)wait_until(replied_, lock, by, [&] { return answer || !lost_.ok(); });
  calls_.erase(request.id);
  if (answer) return *std::move(answer);
  if (!lost_.ok()) return lost_;
  if (request.op == StoreOp::kGet) queue({StoreOp::kCancel, request.id, 0, {}, {}});
  return Status(Code::kDeadlineExceeded,
                request.op == StoreOp::kGet
                    ? fmt::format("nobody has set '{}' in the Store at {}", request.key, address_)
                    : fmt::format("{} does not answer", server_));
}

Status SocketStoreClient::watch(std::string_view key, WatchCallback callback) {
  const std::string full_key = prefix_ + std::string(key);
  StoreRequest request{StoreOp::kWatch, 0, 0, full_key, {}};
  STORMO_RETURN_IF_ERROR(check_bounds(request));
  const std::lock_guard lock(mutex_);
  if (!lost_.ok()) return lost_;
  request.id = next_id_++;
  watches_.emplace(request.id, std::make_shared<WatchCallback>(std::move(callback)));
  queue(request);
  return {};
}

Status SocketStoreClient::goodbye(Deadline by) {
  Status said = call({StoreOp::kGoodbye, 0, 0, {}, {}}, by).status();
  {
    const std::lock_guard lock(mutex_);
    on_lost_ = nullptr;
    watches_.clear();
    if (lost_.ok()) {
      lost_ = Status(Code::kCancelled, fmt::format("the session with {} has ended", server_));
    }
    replied_.notify_all();
  }
  loop_.stop();
  static_cast<void>(write_queued());  // what the thread had no time for
  static_cast<void>(connection_.release());
  return said;
}

/// Waits for something to do and does it.
void SocketStoreClient::turn() {
  Status lost;
  {
    const std::lock_guard lock(mutex_);
    lost = lost_;
  }
  const RealClock clock;
  const short events = loop_.wait(lost.ok() ? connection_.fd() : -1, connection_.poll_events(),
                                  lost.ok() ? wake_at() : TimePoint::max(), kMaxPollMs);
  if (!lost.ok()) return report_loss(lost);
  const TimePoint now = clock.now();
  silence_.note_own_pause(now - std::exchange(last_turn_, now), now);
  if (now >= next_beat_) {
    const bool first = next_beat_ == TimePoint{};
    queue_beat(first ? Duration::zero() : now - next_beat_);
    next_beat_ = now + beat_;
  }
  // Read first: what the server said before it died still counts.
  Status done = events != 0 ? read_replies().status() : Status();
  if (done.ok()) done = write_queued();
  if (done.ok()) done = judge_silence(now);
  if (done.ok()) return;
  // another rank may have judged a stopped server first, and ended it
  const bool was_silent = answers_beats_ && silence_.so_far(now) > max_silence_ / 2;
  lose(was_silent ? no_answer() : done);
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
  std::uint32_t id = 0;
  if (max_silence_ > Duration::zero() && asked_ == 0) {
    id = asked_ = next_id_++;
    asked_at_ = last_turn_;
  }
  queued_.push_back(encode(StoreRequest{StoreOp::kBeat, id, late.count(), {}, note}));
}

/// The next beat comes first, but for a silence that was looked at before.
TimePoint SocketStoreClient::wake_at() const {
  return answers_beats_ ? std::min(next_beat_, silence_.look_at(max_silence_)) : next_beat_;
}

/// A failure when the server has answered before, and does not any more.
Status SocketStoreClient::judge_silence(TimePoint now) {
  if (!answers_beats_) return {};
  const auto it_runs = [this] { return server_process_.ran(); };
  if (!silence_.is_too_long(now, max_silence_, it_runs)) return {};
  return no_answer();
}

Status SocketStoreClient::write_queued() {
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& request : std::exchange(queued_, {})) connection_.send(request);
  }
  const Status why = connection_.flush();
  // The last words of a server that is gone may still wait to be read.
  for (bool more = !why.ok(); more;) {
    STORMO_ASSIGN_OR_RETURN(more, read_replies());
  }
  return why;
}

/// Handles one buffer of input; false when there was none.
Result<bool> SocketStoreClient::read_replies() {
  STORMO_ASSIGN_OR_RETURN(const bool has_received, connection_.receive());
  if (has_received) silence_.hear(RealClock().now());
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const auto body, connection_.next());
    if (!body) return has_received;
    STORMO_ASSIGN_OR_RETURN(const Reply reply, decode<Reply>(kStoreProtocol, *body));
    on_reply(reply);
  }
}

void SocketStoreClient::on_reply(const Reply& reply) {
  std::shared_ptr<WatchCallback> callback;
  {
    const std::lock_guard lock(mutex_);
    const auto id = static_cast<std::uint32_t>(reply.id);
    if (asked_ != 0 && id == asked_) {
      silence_.note_late(RealClock().now() - asked_at_);
      asked_ = 0;
      answers_beats_ = true;
    }
    if (const auto watch = watches_.find(id); watch != watches_.end()) callback = watch->second;
    if (const auto call = calls_.find(id); call != calls_.end()) *call->second = outcome_of(reply);
    replied_.notify_all();
  }
  if (callback) (*callback)(reply.body);
}

/// Whoever learns of it by a call finds what the callback has done about it.
void SocketStoreClient::lose(const Status& why) {
  const Status lost(Code::kPeerLost, fmt::format("lost {}: {}", server_, why.message()));
  report_loss(lost);
  const std::lock_guard lock(mutex_);
  lost_ = lost;
  replied_.notify_all();
}

void SocketStoreClient::report_loss(const Status& lost) {
  if (loop_.is_stopping()) return;
  std::function<void(Status)> callback;
  {
    const std::lock_guard lock(mutex_);
    callback = std::exchange(on_lost_, nullptr);
  }
  if (callback) callback(lost);
}

Result<Channel> dial(Dialer& dialer, std::string_view server, Deadline by) {
  const RealClock clock;
  while (!dialer.step(clock.now())) {
    const TimePoint now = clock.now();
    if (by.expired()) {
      return Status(Code::kDeadlineExceeded,
                    fmt::format("cannot reach {}: {}; check that its process runs and that the "
                                "address is right",
                                server, dialer.last_failure()));
    }
    pollfd p{dialer.fd(), dialer.poll_events(), 0};
    ::poll(&p, 1, poll_timeout(now, std::min(dialer.wake_at(), by.when()), kMaxPollMs));
  }
  Result<Channel> socket = dialer.take();
  if (socket.ok()) return socket;
  return socket.status().within(std::string(server));
}

Result<std::unique_ptr<StoreClient>> begin_session(const std::optional<ServingRank>& rank,
                                                   const StoreClient::Options& options,
                                                   Deadline by) {
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
  STORMO_ASSIGN_OR_RETURN(Channel socket, dial(dialer, name_of(rank, options.address.text), by));
  auto client = std::make_unique<SocketStoreClient>(std::move(socket), options, rank);
  STORMO_RETURN_IF_ERROR(client->start());
  return std::unique_ptr<StoreClient>(std::move(client));
}

}  // namespace

Result<std::unique_ptr<StoreClient>> StoreClient::connect(Options options, Deadline by) {
  return begin_session({}, options, by);
}

Result<std::unique_ptr<StoreClient>> connect_to_rank(ServingRank server,
                                                     StoreClient::Options options, Deadline by) {
  // each beat asks for an answer
  options.beat = std::min(options.beat, Silence::kMaxOwnPause / 2);
  return begin_session(server, options, by);
}

}  // namespace stormo::transport
