#include <stormo/server/process/shard_server.h>

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <stormo/base/printable.h>
#include <stormo/base/units.h>
#include <stormo/server/intervals.h>
#include <stormo/server/message/run_terms.h>
#include <stormo/server/process/chief_watch.h>
#include <stormo/server/process/hosted_partitions.h>
#include <stormo/server/process/server_members.h>
#include <stormo/transport/call/frame_connection.h>
#include <stormo/transport/net/gate.h>

namespace stormo::server {
namespace {

using transport::Gate;
using Member = ServerMembers::Member;

constexpr int kTickMs = 20;
constexpr std::size_t kMaxConnections = 4096;
/// Bytes of replies for a worker that does not read them.
constexpr std::size_t kMaxUnread = std::size_t{1} << 20;

struct Connection {
  transport::FrameConnection control;
  std::string peer;
  int worker = -1;  ///< before its hello
  bool is_over = false;
};

class PollingShardServer final : public ShardServer {
 public:
  ~PollingShardServer() override {
    if (parts_) parts_->close();
  }
  Status open(Options options);
  transport::HostPort address() const override { return address_; }
  Status serve(int stop_fd) override;

 private:
  using Connections = std::vector<std::unique_ptr<Connection>>;

  void event(const std::string& line) const {
    if (options_.on_event) options_.on_event(line);
  }
  /// Waits for something to do, and does it. True when `stop_fd` is readable.
  bool turn(int stop_fd);
  std::optional<Status> end() const;
  bool chief_is_here() const;
  void say_farewell(const Status& why);
  void pass_on_complaints();
  void tell_who_is_missing();

  Status handle(Connection& c);
  Status handle(Connection& c, const ServerRequest& request);
  static void reply(Connection& c, std::uint32_t id, const Result<std::string>& outcome);
  Status greet(Connection& c, const ServerRequest& request);
  Status attach(Connection& c, const ServerRequest& request);
  Status handle_predecessor(Connection& c, const ServerRequest& request);
  Status answer_beat(Connection& c, const ServerRequest& request);
  Status admit(const WorkerHello& hello);
  Status admit_predecessor(const WorkerHello& hello);
  Result<std::string> chief_terms(std::string_view bytes);
  Status check_memory(const RunTerms& terms) const;
  void answer_waiting();
  Result<std::string> shards_for(const Member& member) const;
  Connection* connection_of(int worker);

  void watch_all(TimePoint now);

  Options options_;
  transport::HostPort address_;
  std::unique_ptr<Gate> gate_;
  Connections connections_;
  TimePoint began_{};  // to serve
  bool told_before_open_ = false, told_after_open_ = false;
  std::optional<TimePoint> opened_;
  std::optional<TimePoint> chief_finished_;
  Status chief_failure_;
  std::mutex complaints_mutex_;
  std::vector<std::string> complaints_;      // of threads of remote workers; guarded
  std::unique_ptr<HostedPartitions> parts_;  // null before the first hello
  std::unique_ptr<ServerMembers> members_;   // likewise; ends before what its threads use
  std::unique_ptr<ChiefWatch> chief_;        // likewise
  TimePoint last_look_ = std::chrono::steady_clock::now();
};

Status PollingShardServer::open(Options options) {
  options_ = std::move(options);
  Gate::Options gate;
  STORMO_ASSIGN_OR_RETURN(address_, Gate::listen(gate, options_.address, options_.ports));
  gate.secret = options_.secret;
  gate.purpose = transport::Purpose::kServer;
  gate.on_refused = [this](std::string_view line) { event(std::string(line)); };
  gate.admit = [this](const transport::Hello&) {
    return connections_.size() < kMaxConnections ? transport::Refusal::kNone
                                                 : transport::Refusal::kFull;
  };
  STORMO_ASSIGN_OR_RETURN(gate_, Gate::open(std::move(gate)));
  return {};
}

Status PollingShardServer::serve(int stop_fd) {
  began_ = std::chrono::steady_clock::now();
  std::optional<Deadline> stops;
  for (;;) {
    if (turn(stops ? -1 : stop_fd)) stops = Deadline::after(options_.stop_grace);
    std::optional<Status> outcome = end();
    if (!outcome && stops && (stops->expired() || !chief_is_here())) {
      outcome = Status(Code::kInterrupted, "the server was told to stop");
    }
    if (outcome) {
      if (parts_) parts_->close();
      say_farewell(outcome->ok() ? Status(Code::kPeerLost, "the chief has finished the run")
                                 : *outcome);
      return *outcome;
    }
  }
}

bool PollingShardServer::turn(int stop_fd) {
  std::vector<pollfd> fds = {{stop_fd, POLLIN, 0}, {gate_->poll_fd(), POLLIN, 0}};
  for (const auto& c : connections_) {
    fds.push_back({c->control.fd(), c->control.poll_events(), 0});
  }
  (void)::poll(fds.data(), fds.size(), kTickMs);
  const TimePoint now = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Connection& c = *connections_[i];
    if (fds[i + 2].revents == 0) continue;
    Status status = c.control.receive().status();
    if (status.ok()) status = handle(c);
    c.is_over = !status.ok();
    if (status.code() == Code::kCorrupt) {
      event(fmt::format("refused {}: {}", c.peer, status.message()));
    }
  }
  answer_waiting();
  for (const auto& c : connections_) {
    const Status sent = c->is_over ? Status() : c->control.flush();
    if (sent.code() == Code::kExhausted)
      event(fmt::format("cut off {}: {}", c->peer, sent.message()));
    if (!sent.ok()) c->is_over = true;
  }
  std::erase_if(connections_, [](const auto& c) { return c->is_over; });
  for (Gate::Visitor& visitor : gate_->step(now)) {
    connections_.push_back(std::make_unique<Connection>(Connection{
        .control =
            transport::FrameConnection(std::move(visitor.socket), control_frames(), kMaxUnread),
        .peer = std::move(visitor.peer)}));
  }
  watch_all(std::chrono::steady_clock::now());
  pass_on_complaints();
  tell_who_is_missing();
  return stop_fd >= 0 && fds[0].revents != 0;
}

bool PollingShardServer::chief_is_here() const {
  const Member* const chief = chief_ ? chief_->member() : nullptr;
  return chief != nullptr && chief->stage == Member::Stage::kHere;
}

/// How the run has ended; nothing while it goes on.
std::optional<Status> PollingShardServer::end() const {
  const bool has_chief = chief_ && chief_->member() != nullptr;
  if (!has_chief && std::chrono::steady_clock::now() - began_ > options_.arrival_time) {
    return Status(Code::kDeadlineExceeded,
                  fmt::format("worker 0, the chief, did not come within {}; check that it runs and "
                              "that it has this server's address",
                              format_duration(options_.arrival_time)));
  }
  if (!members_) return {};
  if (const Status failure = parts_->failure(); !failure.ok()) return failure;
  if (!chief_failure_.ok()) return chief_failure_;
  if (!chief_->failure().ok()) return chief_->failure();
  if (!chief_finished_) return {};
  const bool waited =
      std::chrono::steady_clock::now() - *chief_finished_ > chief_->member()->timeout;
  if (members_->any_here() && !waited) return {};
  return Status();
}

void PollingShardServer::say_farewell(const Status& why) {
  for (const auto& c : connections_) {
    c->control.send(
        encode(transport::Reply{.id = kFarewell, .code = why.code(), .body = why.message()}));
    (void)c->control.flush();  // whoever does not hear it sees the end of the connection
  }
}

void PollingShardServer::pass_on_complaints() {
  std::vector<std::string> lines;
  {
    const std::lock_guard lock(complaints_mutex_);
    lines.swap(complaints_);
  }
  for (const std::string& line : lines) event(line);
}

/// Without the chief everybody waits; once the run is open only the chief, for others in the end.
void PollingShardServer::tell_who_is_missing() {
  bool& told = opened_ ? told_after_open_ : told_before_open_;
  if (told || std::chrono::steady_clock::now() - opened_.value_or(began_) < kTellAfter) return;
  told = true;
  std::string missing;
  for (int w = 0; w < (!opened_ ? 1 : parts_->workers()); ++w) {
    if (members_ && members_->find(w) != nullptr) continue;
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", w);
  }
  if (missing.empty()) return;
  const std::string limit = format_duration(options_.arrival_time);
  const std::string line =
      opened_ ? fmt::format(
                    "waits for workers that have not come: {}; after {} the others do "
                    "their steps",
                    missing, limit)
              : fmt::format("waits for worker 0, the chief, for up to {}", limit);
  if (!opened_) event(line);
  for (const auto& c : connections_) {
    const bool waits = opened_ ? c->worker == chief_->worker() : c->worker > 0;
    if (waits) c->control.send(encode(transport::Reply{.id = kNotice, .body = line}));
  }
}

Status PollingShardServer::handle(Connection& c) {
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const auto body, c.control.next());
    if (!body) return {};
    STORMO_ASSIGN_OR_RETURN(const ServerRequest request, decode<ServerRequest>(*body));
    STORMO_RETURN_IF_ERROR(handle(c, request));
  }
}

Status PollingShardServer::handle(Connection& c, const ServerRequest& request) {
  if (request.op == ServerOp::kHello) return greet(c, request);
  if (request.op == ServerOp::kAttach) return attach(c, request);
  if (c.worker < 0) return Status(Code::kCorrupt, "server protocol: a request before the hello");
  if (parts_->is_predecessor(c.worker)) return handle_predecessor(c, request);
  if (request.op == ServerOp::kBeat) return answer_beat(c, request);
  Member& member = members_->at(c.worker);
  const bool is_chief = c.worker == chief_->worker();
  members_->hear(c.worker, std::chrono::steady_clock::now());
  switch (request.op) {
    case ServerOp::kHello:
    case ServerOp::kAttach:
    case ServerOp::kBeat: break;
    case ServerOp::kTerms:
      if (is_chief) {
        reply(c, request.id, chief_terms(request.body));
      } else {
        member.asks_terms = request.id;
        member.terms = request.body;
      }
      break;
    case ServerOp::kOpen:
      if (c.worker != 0 || !parts_->terms()) {
        return Status(Code::kCorrupt,
                      "server protocol: only worker 0 opens a run, after its terms");
      }
      opened_ = std::chrono::steady_clock::now();
      chief_->open();
      reply(c, request.id, std::string());
      break;
    case ServerOp::kFinish:
      members_->finish(c.worker);
      if (is_chief) {
        chief_finished_ = std::chrono::steady_clock::now();
        chief_->finish();
      }
      reply(c, request.id, std::string());
      break;
    case ServerOp::kFail:
      if (!is_chief) return Status(Code::kCorrupt, "server protocol: only the chief ends a run");
      chief_failure_ = Status(Code::kCancelled, quoted_text(request.body))
                           .within(fmt::format("worker {}", c.worker));
      reply(c, request.id, std::string());
      break;
  }
  return {};
}

Status PollingShardServer::answer_beat(Connection& c, const ServerRequest& request) {
  STORMO_ASSIGN_OR_RETURN(const WorkerBeat beat, decode<WorkerBeat>(request.body));
  members_->hear(c.worker, std::chrono::steady_clock::now(), &beat.state);
  if (!parts_->has_backups()) {
    reply(c, kBeatId, std::string());
    return {};
  }
  if (chief_->hear(c.worker, beat.news)) {
    const Result<std::vector<std::string>> lines = parts_->take(beat.news);
    if (!lines.ok()) return lines.status().code() == Code::kCorrupt ? lines.status() : Status();
    for (const std::string& line : *lines) event(line);
    if (!lines->empty()) members_->take_over();
  }
  ServerNews news = parts_->news();
  news.chief = chief_->term();
  news.is_over = chief_finished_.has_value();
  reply(c, kBeatId, encode(news));
  return {};
}

Status PollingShardServer::handle_predecessor(Connection& c, const ServerRequest& request) {
  if (request.op != ServerOp::kBeat) {
    return Status(Code::kCorrupt, "server protocol: a server asks as a worker");
  }
  parts_->predecessor().hear(std::chrono::steady_clock::now());
  reply(c, kBeatId, std::string());
  return {};
}

void PollingShardServer::reply(Connection& c, std::uint32_t id,
                               const Result<std::string>& outcome) {
  c.control.send(encode(transport::reply_of(id, outcome)));
}

Status PollingShardServer::greet(Connection& c, const ServerRequest& request) {
  STORMO_ASSIGN_OR_RETURN(const WorkerHello hello, decode<WorkerHello>(request.body));
  if (const Status admitted = admit(hello); !admitted.ok()) {
    reply(c, request.id, admitted);
    return {};
  }
  // the connection that it had before is over, though this may not have been noticed yet
  if (Connection* before = connection_of(hello.worker); before != nullptr && before != &c) {
    before->worker = -1;
    before->is_over = true;
  }
  c.worker = hello.worker;
  const TimePoint now = std::chrono::steady_clock::now();
  if (parts_->is_predecessor(c.worker)) {
    parts_->predecessor().hear(now);
  } else {
    members_->hear(c.worker, now);
  }
  reply(c, request.id,
        encode(ServerHello{
            .place = Place::own(), .ledger = parts_->ledger_file(), .chief = chief_->term()}));
  return {};
}

/// Hands the connection over to the thread of the worker, or of the predecessor.
Status PollingShardServer::attach(Connection& c, const ServerRequest& request) {
  STORMO_ASSIGN_OR_RETURN(const Attachment attachment, decode<Attachment>(request.body));
  if (!parts_ || !parts_->terms()) return io_error("the run has no terms yet");
  const auto on_nonsense = [this, peer = c.peer](const Status& why) {
    const std::lock_guard lock(complaints_mutex_);
    complaints_.push_back(fmt::format("refused {}: {}", peer, why.message()));
  };
  const bool is_predecessor = parts_->is_predecessor(attachment.worker);
  RemoteWorker* remote = nullptr;
  if (is_predecessor) {
    STORMO_RETURN_IF_ERROR(parts_->predecessor().check(attachment));
  } else {
    STORMO_ASSIGN_OR_RETURN(remote, members_->remote_of(attachment));
  }
  reply(c, request.id, std::string());
  STORMO_RETURN_IF_ERROR(c.control.flush());
  if (is_predecessor) {
    parts_->predecessor().attach(c.control.release(), on_nonsense);
  } else {
    remote->attach(c.control.release(), on_nonsense);
  }
  return io_error("it is a data connection now");
}

Status PollingShardServer::admit(const WorkerHello& hello) {
  if (hello.worker >= hello.workers) return admit_predecessor(hello);
  if (!parts_) {
    STORMO_ASSIGN_OR_RETURN(parts_, HostedPartitions::create(hello));
    members_ = std::make_unique<ServerMembers>(ServerMembers::Options{
        .parts = parts_.get(),
        .is_connected = [this](int worker) { return connection_of(worker) != nullptr; },
        .stall = options_.stall,
        .on_event = [this](const std::string& line) { event(line); }});
    chief_ = std::make_unique<ChiefWatch>(
        ChiefWatch::Options{.parts = parts_.get(),
                            .members = members_.get(),
                            .on_event = [this](const std::string& line) { event(line); }});
  }
  STORMO_RETURN_IF_ERROR(parts_->check(hello));
  STORMO_RETURN_IF_ERROR(chief_->check(hello));
  return members_->admit(hello);
}

Status PollingShardServer::admit_predecessor(const WorkerHello& hello) {
  if (!parts_) return Status(Code::kExhausted, "no worker has come yet");
  if (!parts_->is_predecessor(hello.worker)) {
    return Status(Code::kMismatch, "another server is the predecessor");
  }
  return parts_->predecessor().admit(hello);
}

Result<std::string> PollingShardServer::chief_terms(std::string_view bytes) {
  STORMO_ASSIGN_OR_RETURN(const RunTerms terms, decode<RunTerms>(bytes));
  if (terms.workers != parts_->workers()) {
    return invalid_argument(
        fmt::format("terms for {} workers, but worker 0 was told that it is "
                    "one of {}; give both the same number",
                    terms.workers, parts_->workers()));
  }
  if (!parts_->terms()) {
    STORMO_RETURN_IF_ERROR(check(terms));
    STORMO_RETURN_IF_ERROR(check_memory(terms));
    STORMO_RETURN_IF_ERROR(parts_->create_shards(terms, options_.secret, members_->at(0).timeout));
    for (auto& [worker, member] : members_->all()) {
      member.is_leaving = member.stage != Member::Stage::kHere;
    }
  } else if (const auto differs = difference(terms, *parts_->terms(), "worker 0", "the servers")) {
    return Status(Code::kMismatch, *differs);
  }
  return encode(parts_->shard_files());
}

Status PollingShardServer::check_memory(const RunTerms& terms) const {
  const std::uint64_t needed = parts_->needed_bytes(terms);
  if (needed <= options_.memory) return {};
  return invalid_argument(fmt::format(
      "the shards of the server at {} need {}, but {} are available; use more servers, or a "
      "machine with more memory",
      transport::to_string(address_), format_bytes(needed), format_bytes(options_.memory)));
}

/// Workers that wait for the chief: those whose terms differ learn it at once, others when the run
/// is open.
void PollingShardServer::answer_waiting() {
  if (!parts_ || !parts_->terms()) return;
  for (auto& [worker, member] : members_->all()) {
    if (!member.asks_terms) continue;
    const Result<std::string> answer = shards_for(member);
    if (answer.ok() && !opened_) continue;
    if (!answer.ok()) {
      member.is_refused = true;
      event(fmt::format("refused worker {}: {}", worker, answer.status().message()));
    }
    if (Connection* c = connection_of(worker)) reply(*c, *member.asks_terms, answer);
    member.asks_terms.reset();
  }
}

Result<std::string> PollingShardServer::shards_for(const Member& member) const {
  STORMO_ASSIGN_OR_RETURN(const RunTerms terms, decode<RunTerms>(member.terms));
  if (const auto differs = difference(terms, *parts_->terms(), "this worker", "worker 0")) {
    return Status(Code::kMismatch, *differs + "; start all workers with the same recipe");
  }
  return encode(parts_->shard_files());
}

Connection* PollingShardServer::connection_of(int worker) {
  const auto found = std::ranges::find_if(
      connections_, [worker](const auto& c) { return c->worker == worker && !c->is_over; });
  return found == connections_.end() ? nullptr : found->get();
}

void PollingShardServer::watch_all(TimePoint now) {
  const Duration since = now - std::exchange(last_look_, now);
  const Duration pause = std::max<Duration>(since - kLongestTurn, Duration::zero());
  if (!members_) return;
  if (parts_->has_backups()) {
    const bool is_connected = std::ranges::any_of(connections_, [this](const auto& c) {
      return parts_->is_predecessor(c->worker) && !c->is_over;
    });
    parts_->predecessor().watch(is_connected, now, pause);
  }
  members_->watch(now, since, pause);
  if (opened_) members_->look_for_stalls(chief_->worker());
  chief_->watch(now);
  if (opened_ && now - *opened_ >= options_.arrival_time) {
    members_->miss_absent(options_.arrival_time);
  }
}

}  // namespace

Result<std::unique_ptr<ShardServer>> ShardServer::listen(Options options) {
  auto server = std::make_unique<PollingShardServer>();
  STORMO_RETURN_IF_ERROR(server->open(std::move(options)));
  return std::unique_ptr<ShardServer>(std::move(server));
}

}  // namespace stormo::server
