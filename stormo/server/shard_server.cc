#include <stormo/server/shard_server.h>

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <stormo/base/units.h>
#include <stormo/server/control_connection.h>
#include <stormo/server/hosted_run.h>
#include <stormo/server/remote_worker.h>
#include <stormo/server/run_terms.h>
#include <stormo/transport/net/gate.h>
#include <stormo/transport/shm/peer_process.h>

namespace stormo::server {
namespace {

using transport::Gate;
using transport::PeerProcess;

constexpr int kTickMs = 20;
/// What is longer between two looks is a pause of the server itself, and no silence of workers.
constexpr Duration kLongestTurn = std::chrono::milliseconds(100);
/// For the lease of a shard, when a worker is taken out of it.
constexpr Duration kLeavePatience = std::chrono::seconds(1);
constexpr std::size_t kMaxConnections = 4096;
/// For workers to come, once the run is open; others then do their steps.
constexpr Duration kArrivalTime = std::chrono::seconds(60);
constexpr Duration kLongestTimeout = std::chrono::hours(24);

/// A worker as the server knows it.
struct Member {
  enum class Stage { kHere, kLost, kFinished } stage = Stage::kHere;
  std::uint64_t token = 0;  ///< of its session
  Duration timeout{};
  TimePoint heard{};
  std::optional<PeerProcess> process = {};  ///< if it is on this host
  bool is_leaving = false;                  ///< lost, but not yet out of all shards
  bool is_buried = false;
  std::optional<std::uint32_t> asks_terms = {};  ///< id of a request that waits for the chief
  std::string terms = {};                        ///< of this request
  std::unique_ptr<RemoteWorker> remote = {};     ///< if it does not map the memory
};

struct Connection {
  ControlConnection control;
  std::string peer;
  int worker = -1;  ///< before its hello
  bool is_over = false;
};

class PollingShardServer final : public ShardServer {
 public:
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
  void say_farewell(const Status& why);
  void pass_on_complaints();

  Status handle(Connection& c);
  Status handle(Connection& c, const ServerRequest& request);
  static void reply(Connection& c, std::uint32_t id, const Result<std::string>& outcome);
  Status greet(Connection& c, const ServerRequest& request);
  Status attach(Connection& c, const ServerRequest& request);
  Status admit(const WorkerHello& hello);
  Status make_room(int worker);
  Result<std::string> chief_terms(std::string_view bytes);
  void answer_waiting();
  Result<std::string> shards_for(const Member& member) const;
  Connection* connection_of(int worker);

  void hear(int worker, TimePoint now);
  void watch_members(TimePoint now);
  void miss_absent(TimePoint now);
  void lose(int worker, Member& member, const std::string& why);
  void take_out(int worker, Member& member);

  Options options_;
  transport::HostPort address_;
  std::unique_ptr<Gate> gate_;
  Connections connections_;
  std::unique_ptr<HostedRun> run_;
  std::optional<TimePoint> opened_;
  std::optional<TimePoint> chief_finished_;
  std::mutex complaints_mutex_;
  std::vector<std::string> complaints_;  // of threads of remote workers; guarded
  std::map<int, Member> members_;        // ends before what its threads use
  TimePoint last_look_ = std::chrono::steady_clock::now();
};

Status PollingShardServer::open(Options options) {
  options_ = std::move(options);
  STORMO_ASSIGN_OR_RETURN(transport::Descriptor listener,
                          transport::listen_tcp(options_.address, options_.ports));
  STORMO_ASSIGN_OR_RETURN(const transport::SocketAddress bound,
                          transport::local_address_of(listener.get()));
  STORMO_ASSIGN_OR_RETURN(address_, transport::parse_host_port(bound.to_string()));
  Gate::Options gate;
  gate.listener = std::move(listener);
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
  for (;;) {
    if (turn(stop_fd)) {
      const Status stopped(Code::kInterrupted, "the server was told to stop");
      say_farewell(stopped);
      return stopped;
    }
    if (const std::optional<Status> outcome = end()) {
      say_farewell(outcome->ok() ? Status(Code::kPeerLost, "worker 0 has finished the run")
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
    Status status = c.control.receive();
    if (status.ok()) status = handle(c);
    c.is_over = !status.ok();
    if (status.code() == Code::kCorrupt) {
      event(fmt::format("refused {}: {}", c.peer, status.message()));
    }
  }
  answer_waiting();
  for (const auto& c : connections_) {
    if (!c->is_over && !c->control.flush().ok()) c->is_over = true;
  }
  std::erase_if(connections_, [](const auto& c) { return c->is_over; });
  for (Gate::Visitor& visitor : gate_->step(now)) {
    connections_.push_back(std::make_unique<Connection>(Connection{
        .control = ControlConnection(std::move(visitor.socket)), .peer = std::move(visitor.peer)}));
  }
  watch_members(std::chrono::steady_clock::now());
  miss_absent(std::chrono::steady_clock::now());
  pass_on_complaints();
  return stop_fd >= 0 && fds[0].revents != 0;
}

/// How the run has ended; nothing while it goes on.
std::optional<Status> PollingShardServer::end() const {
  const auto chief = members_.find(0);
  if (chief == members_.end()) return {};
  if (chief->second.stage == Member::Stage::kLost) {
    return Status(Code::kPeerLost, "worker 0, which keeps the run, was lost");
  }
  if (!chief_finished_) return {};
  const bool others_are_here = std::ranges::any_of(
      members_, [](const auto& m) { return m.second.stage == Member::Stage::kHere; });
  const bool waited = std::chrono::steady_clock::now() - *chief_finished_ > chief->second.timeout;
  if (others_are_here && !waited) return {};
  return Status();
}

void PollingShardServer::say_farewell(const Status& why) {
  for (const auto& c : connections_) {
    c->control.send(
        encode(ServerReply{.id = kFarewell, .code = why.code(), .body = why.message()}));
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

Status PollingShardServer::handle(Connection& c) {
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const auto body, c.control.next());
    if (!body) return {};
    STORMO_ASSIGN_OR_RETURN(const ServerRequest request, decode_server_request(*body));
    STORMO_RETURN_IF_ERROR(handle(c, request));
  }
}

Status PollingShardServer::handle(Connection& c, const ServerRequest& request) {
  if (request.op == ServerOp::kHello) return greet(c, request);
  if (request.op == ServerOp::kAttach) return attach(c, request);
  if (c.worker < 0) return Status(Code::kCorrupt, "server protocol: a request before the hello");
  Member& member = members_.at(c.worker);
  hear(c.worker, std::chrono::steady_clock::now());
  switch (request.op) {
    case ServerOp::kHello:
    case ServerOp::kAttach: break;
    case ServerOp::kBeat: reply(c, kBeatId, std::string()); break;
    case ServerOp::kTerms:
      if (c.worker == 0) {
        reply(c, request.id, chief_terms(request.body));
      } else {
        member.asks_terms = request.id;
        member.terms = request.body;
      }
      break;
    case ServerOp::kOpen:
      if (c.worker != 0 || !run_->terms()) {
        return Status(Code::kCorrupt,
                      "server protocol: only worker 0 opens a run, after its terms");
      }
      opened_ = std::chrono::steady_clock::now();
      reply(c, request.id, std::string());
      break;
    case ServerOp::kFinish:
      member.stage = Member::Stage::kFinished;
      if (c.worker == 0) chief_finished_ = std::chrono::steady_clock::now();
      reply(c, request.id, std::string());
      break;
  }
  return {};
}

void PollingShardServer::reply(Connection& c, std::uint32_t id,
                               const Result<std::string>& outcome) {
  c.control.send(
      encode(ServerReply{.id = id,
                         .code = outcome.status().code(),
                         .body = outcome.ok() ? std::string_view(*outcome)
                                              : std::string_view(outcome.status().message())}));
}

Status PollingShardServer::greet(Connection& c, const ServerRequest& request) {
  STORMO_ASSIGN_OR_RETURN(const WorkerHello hello, decode_worker_hello(request.body));
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
  hear(c.worker, std::chrono::steady_clock::now());
  reply(c, request.id, encode(ServerHello{.place = Place::own(), .ledger = run_->ledger_file()}));
  return {};
}

/// Hands the connection over to the worker's thread.
Status PollingShardServer::attach(Connection& c, const ServerRequest& request) {
  STORMO_ASSIGN_OR_RETURN(const Attachment attachment, decode_attachment(request.body));
  const auto member = members_.find(attachment.worker);
  if (member == members_.end() || member->second.token != attachment.token ||
      member->second.stage != Member::Stage::kHere || !run_->terms()) {
    return io_error("it has to say hello first");
  }
  std::unique_ptr<RemoteWorker>& remote = member->second.remote;
  if (!remote) remote = std::make_unique<RemoteWorker>(*run_, attachment.worker);
  reply(c, request.id, std::string());
  STORMO_RETURN_IF_ERROR(c.control.flush());
  remote->attach(c.control.release(), [this, peer = c.peer](const Status& why) {
    const std::lock_guard lock(complaints_mutex_);
    complaints_.push_back(fmt::format("refused {}: {}", peer, why.message()));
  });
  return io_error("it is a data connection now");
}

/// Makes the worker a member, or finds that it is one.
Status PollingShardServer::admit(const WorkerHello& hello) {
  const bool is_possible = hello.workers >= 1 && hello.workers <= ShardMemory::kMaxWorkers &&
                           hello.worker >= 0 && hello.worker < hello.workers &&
                           hello.servers >= 1 && hello.server >= 0 &&
                           hello.server < hello.servers && hello.timeout_ns > 0 &&
                           hello.timeout_ns <= kLongestTimeout.count();
  if (!is_possible) return invalid_argument("a worker with impossible numbers");
  if (!run_) {
    STORMO_ASSIGN_OR_RETURN(run_, HostedRun::create(hello.workers, hello.server, hello.servers));
  }
  if (hello.workers != run_->workers() || hello.server != run_->server() ||
      hello.servers != run_->servers()) {
    return Status(
        Code::kMismatch,
        fmt::format("worker {} takes this for server {} of {} with {} workers, but others take it "
                    "for server {} of {} with {} workers; give all workers the same list",
                    hello.worker, hello.server, hello.servers, hello.workers, run_->server(),
                    run_->servers(), run_->workers()));
  }
  const auto known = members_.find(hello.worker);
  if (known != members_.end() && known->second.token == hello.token) return {};
  const bool was_there = known != members_.end();
  if (was_there) STORMO_RETURN_IF_ERROR(make_room(hello.worker));
  Member& member = members_[hello.worker] = {};
  member.token = hello.token;
  member.timeout = Duration(hello.timeout_ns);
  if (Place::own().is_same_host(hello.place)) member.process.emplace(hello.place.process);
  if (was_there) {
    run_->come_back(hello.worker);
    event(fmt::format("worker {} is back, as a new process", hello.worker));
  }
  return {};
}

/// Takes out the process that had the worker's number before. kExhausted while it is there.
Status PollingShardServer::make_room(int worker) {
  Member& before = members_.at(worker);
  if (before.process) before.process->wait(Duration::zero());
  const bool has_ended =
      before.process ? before.process->is_gone() : connection_of(worker) == nullptr;
  if (!has_ended && before.stage != Member::Stage::kFinished) {
    return Status(Code::kExhausted,
                  fmt::format("worker {} is there already; end its process, or give this one "
                              "another number",
                              worker));
  }
  if (before.stage == Member::Stage::kHere) lose(worker, before, "a new process has its number");
  take_out(worker, before);
  if (before.is_leaving || (before.remote && before.remote->is_running())) {
    return Status(Code::kExhausted, fmt::format("worker {} is still being taken out", worker));
  }
  return {};
}

Result<std::string> PollingShardServer::chief_terms(std::string_view bytes) {
  STORMO_ASSIGN_OR_RETURN(const RunTerms terms, decode_run_terms(bytes));
  if (terms.workers != run_->workers()) {
    return invalid_argument(
        fmt::format("terms for {} workers, but worker 0 was told that it is "
                    "one of {}; give both the same number",
                    terms.workers, run_->workers()));
  }
  if (!run_->terms()) {
    STORMO_RETURN_IF_ERROR(run_->create_shards(terms));
    for (auto& [worker, member] : members_) {
      member.is_leaving = member.stage != Member::Stage::kHere;
    }
  } else if (const auto differs = difference(terms, *run_->terms(), "worker 0", "the servers")) {
    return Status(Code::kMismatch, *differs);
  }
  return encode(run_->shard_files());
}

/// Workers that wait for the chief: those whose terms differ learn it at once, others when the run
/// is open.
void PollingShardServer::answer_waiting() {
  if (!run_ || !run_->terms()) return;
  for (auto& [worker, member] : members_) {
    if (!member.asks_terms) continue;
    const Result<std::string> answer = shards_for(member);
    if (answer.ok() && !opened_) continue;
    if (Connection* c = connection_of(worker)) reply(*c, *member.asks_terms, answer);
    member.asks_terms.reset();
  }
}

Result<std::string> PollingShardServer::shards_for(const Member& member) const {
  STORMO_ASSIGN_OR_RETURN(const RunTerms terms, decode_run_terms(member.terms));
  if (const auto differs = difference(terms, *run_->terms(), "this worker", "worker 0")) {
    return Status(Code::kMismatch, *differs + "; start all workers with the same recipe");
  }
  return encode(run_->shard_files());
}

Connection* PollingShardServer::connection_of(int worker) {
  const auto found = std::ranges::find_if(
      connections_, [worker](const auto& c) { return c->worker == worker && !c->is_over; });
  return found == connections_.end() ? nullptr : found->get();
}

void PollingShardServer::hear(int worker, TimePoint now) {
  Member& member = members_.at(worker);
  member.heard = now;
  if (member.stage != Member::Stage::kLost) return;
  take_out(worker, member);
  if (member.is_leaving) return;
  member.stage = Member::Stage::kHere;
  run_->come_back(worker);
  event(fmt::format("worker {} is back", worker));
}

void PollingShardServer::watch_members(TimePoint now) {
  const Duration since = now - std::exchange(last_look_, now);
  for (auto& [worker, member] : members_) {
    member.heard += std::max<Duration>(since - kLongestTurn, Duration::zero());
    const bool is_connected = connection_of(worker) != nullptr;
    if (member.process && !is_connected) member.process->wait(Duration::zero());
    if (member.stage == Member::Stage::kHere) {
      if (!is_connected && member.process && member.process->is_gone()) {
        lose(worker, member, "its process has ended");
      } else if (now - member.heard > member.timeout) {
        const double seconds = std::chrono::duration<double>(now - member.heard).count();
        lose(worker, member, fmt::format("nothing was heard of it for {:.1f} s", seconds));
      }
    }
    if (member.stage != Member::Stage::kHere) take_out(worker, member);
  }
}

/// Workers that have never come are lost, too.
void PollingShardServer::miss_absent(TimePoint now) {
  if (!opened_ || now - *opened_ < kArrivalTime) return;
  for (int w = 0; w < run_->workers(); ++w) {
    if (members_.contains(w)) continue;
    lose(w, members_[w], fmt::format("it did not come within {}", format_duration(kArrivalTime)));
  }
}

void PollingShardServer::lose(int worker, Member& member, const std::string& why) {
  member.stage = Member::Stage::kLost;
  member.is_leaving = true;
  member.is_buried = false;
  take_out(worker, member);
  event(fmt::format("worker {} was lost: {}", worker, why));
}

/// What is left to do for a worker that is lost: it leaves the shards, and when its process has
/// ended, its copies are free.
void PollingShardServer::take_out(int worker, Member& member) {
  if (member.remote) member.remote->cut();
  const bool may_use_copies = (member.process && !member.process->is_gone()) ||
                              (member.remote && member.remote->is_running());
  if (!member.is_buried && !may_use_copies) {
    if (member.remote) member.remote->forget();
    run_->bury(worker);
    member.is_buried = true;
  }
  if (member.is_leaving) {
    member.is_leaving = !run_->lose(worker, Deadline::after(kLeavePatience)).ok();
  }
}

}  // namespace

Result<std::unique_ptr<ShardServer>> ShardServer::listen(Options options) {
  auto server = std::make_unique<PollingShardServer>();
  STORMO_RETURN_IF_ERROR(server->open(std::move(options)));
  return std::unique_ptr<ShardServer>(std::move(server));
}

}  // namespace stormo::server
