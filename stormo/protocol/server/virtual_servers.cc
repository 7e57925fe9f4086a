#include <stormo/protocol/server/virtual_servers.h>

#include <algorithm>
#include <queue>
#include <string>
#include <utility>

#include <stormo/base/rng.h>
#include <stormo/protocol/server/exchange_period.h>
#include <stormo/protocol/server/server_verdicts.h>
#include <stormo/protocol/server/virtual_shard.h>
#include <stormo/protocol/virtual_time.h>

namespace stormo::protocol {
namespace {

struct VirtualWorker {
  Rng rng;
  std::int64_t steps = 0;       // begun
  std::int64_t step = 0;        // number of the current one
  std::int64_t request = 0;     // number of the current one, to all servers
  bool reads = false;           // it
  std::vector<char> waits_for;  // by server: its answer is missing
  int replies = 0;              // that are missing
  Duration waited{};            // for the reply that took longest
  bool ended = false;
};

class VirtualRun {
 public:
  VirtualRun(const VirtualCluster& cluster, const Policy& policy, const VirtualEvents& events)
      : cluster_(cluster),
        policy_(policy),
        events_(events),
        network_(cluster.seed, "virtual network", 0),
        verdicts_(cluster.servers),
        pool_(cluster.steps * cluster.workers),
        crashes_to_come_(cluster.crashes.size() + cluster.server_crashes.size()) {
    const auto workers = static_cast<std::size_t>(cluster.workers);
    for (std::size_t w = 0; w < workers; ++w) {
      workers_.push_back({.rng = Rng(cluster.seed, "virtual worker", w)});
      workers_[w].waits_for.resize(static_cast<std::size_t>(cluster.servers));
    }
    for (int s = 0; s < cluster.servers; ++s) {
      shards_.push_back({.holder = s});
      if (cluster.backups) shards_.back().copy.emplace(cluster.workers);
    }
    outcome_.servers.assign(static_cast<std::size_t>(cluster.servers), ShardState(cluster.workers));
    outcome_.steps.resize(workers);
    outcome_.reads.resize(workers);
    outcome_.pushes.resize(workers);
    outcome_.waited.resize(workers);
  }

  Result<VirtualOutcome> run() {
    for (const auto& crash : cluster_.crashes) {
      schedule(crash.at, {.kind = EventKind::kCrash, .worker = crash.worker});
    }
    for (const auto& crash : cluster_.server_crashes) {
      schedule(crash.at, {.kind = EventKind::kServerCrash, .server = crash.server});
    }
    for (int w = 0; w < cluster_.workers; ++w) STORMO_RETURN_IF_ERROR(begin_step(w));
    while (!queue_.empty()) {
      const VirtualEvent event = queue_.top();
      queue_.pop();
      now_ = event.at;
      STORMO_RETURN_IF_ERROR(check_virtual_time(now_));
      ++outcome_.events;
      STORMO_RETURN_IF_ERROR(handle(event));
      if (!outcome_.lost.empty() || (events_.ends && events_.ends())) {
        outcome_.time = now_;
        return std::move(outcome_);
      }
    }
    if (!std::ranges::all_of(workers_, &VirtualWorker::ended)) return deadlock();
    for (int s = 0; s < cluster_.servers; ++s) {
      if (shard(s).copy && *shard(s).copy != server(s)) {
        return Status(Code::kCorrupt, "a server and its copy differ");
      }
    }
    return std::move(outcome_);
  }

 private:
  VirtualWorker& worker(int w) { return workers_[static_cast<std::size_t>(w)]; }
  ShardState& server(int s) { return outcome_.servers[static_cast<std::size_t>(s)]; }
  VirtualShard& shard(int s) { return shards_[static_cast<std::size_t>(s)]; }
  template <class Values>
  static auto& of(Values& values, int index) {
    return values[static_cast<std::size_t>(index)];
  }

  void schedule(Duration after, VirtualEvent event) {
    event.at = now_ + after;
    event.number = next_event_++;
    queue_.push(event);
  }

  void to_all_servers(bool reads, int w, Duration after = {}) {
    VirtualWorker& me = worker(w);
    ++me.request;
    me.reads = reads;
    ++of(reads ? outcome_.reads : outcome_.pushes, w);
    me.replies = cluster_.servers;
    for (int s = 0; s < cluster_.servers; ++s) {
      of(me.waits_for, s) = 1;
      send(w, s, after);
    }
  }
  /// The worker's current request.
  void send(int w, int s, Duration after = {}) {
    const VirtualWorker& me = worker(w);
    VirtualEvent request{.kind = EventKind::kArrives,
                         .reads = me.reads,
                         .worker = w,
                         .server = s,
                         .holder = shard(s).holder,
                         .request = me.request,
                         .sequence = of(me.reads ? outcome_.reads : outcome_.pushes, w) - 1};
    if (!is_message_lost()) schedule(after + cluster_.latency, request);
    if (cluster_.loss == 0 && cluster_.server_crashes.empty()) return;
    request.kind = EventKind::kAgain;
    schedule(after + cluster_.timeout, request);
  }
  bool is_message_lost() { return cluster_.loss > 0 && network_.uniform() < cluster_.loss; }
  void answer(VirtualEvent request) {
    request.kind = EventKind::kReturns;
    if (!is_message_lost()) schedule(cluster_.latency, request);
  }
  bool is_awaited(const VirtualEvent& answer) {
    return worker(answer.worker).request == answer.request &&
           of(worker(answer.worker).waits_for, answer.server) != 0;
  }

  /// Of the step that was begun last; null: its times are drawn.
  const StepTime* recorded_time(int w) {
    if (cluster_.times.empty()) return nullptr;
    const auto& all = of(cluster_.times, w);
    return &all[static_cast<std::size_t>(worker(w).steps - 1) % all.size()];
  }

  Status take_answer(const VirtualEvent& answer) {
    const int w = answer.worker;
    if (!is_awaited(answer)) return {};
    of(worker(w).waits_for, answer.server) = 0;
    if (--worker(w).replies > 0) return {};
    of(outcome_.waited, w) += std::exchange(worker(w).waited, {});
    if (!answer.reads) return end_step(w);
    compute(w);
    return {};
  }

  bool has_step(int w) const {
    return cluster_.pooled ? pool_ > 0
                           : workers_[static_cast<std::size_t>(w)].steps < cluster_.steps;
  }

  Status begin_step(int w) {
    VirtualWorker& me = worker(w);
    if (!has_step(w)) {
      schedule(w < std::ssize(cluster_.leaves) ? of(cluster_.leaves, w) : Duration{},
               {.kind = EventKind::kLeaves, .worker = w});
      return {};
    }
    me.step = cluster_.pooled ? cluster_.steps * cluster_.workers - pool_ : me.steps;
    --pool_;
    ++me.steps;
    const StepTime* time = recorded_time(w);
    const Duration rest = time != nullptr ? time->rest : Duration{};
    if (!cluster_.exchanges && begins_period(me.steps, cluster_.read_every)) {
      to_all_servers(/*reads=*/true, w, rest);
    } else {
      compute(w, rest);
    }
    return {};
  }

  Status end_step(int w) {
    if (events_.step_ended) STORMO_RETURN_IF_ERROR(events_.step_ended(w));
    return begin_step(w);
  }

  bool is_push_due(int w) {
    const std::int64_t step = worker(w).steps;
    if (cluster_.exchanges) return begins_period(step, cluster_.push_every);
    return ends_period(step, cluster_.push_every) || !has_step(w);
  }

  void compute(int w, Duration rest = {}) {
    const double slowness =
        w < std::ssize(cluster_.slowness) ? cluster_.slowness[static_cast<std::size_t>(w)] : 1;
    const StepTime* time = recorded_time(w);
    const Duration compute = time != nullptr ? time->compute : cluster_.compute;
    const double jitter =
        time != nullptr ? 1 : 1 + cluster_.jitter * (2 * worker(w).rng.uniform() - 1);
    schedule(rest + scaled(compute, slowness * jitter),
             {.kind = EventKind::kComputed, .worker = w});
  }

  Status handle(const VirtualEvent& event) {
    const int w = event.worker;
    const bool is_crash = event.kind == EventKind::kCrash || event.kind == EventKind::kServerCrash;
    if (is_crash) --crashes_to_come_;
    switch (event.kind) {
      case EventKind::kArrives: STORMO_RETURN_IF_ERROR(arrive(event)); break;
      case EventKind::kCopied: STORMO_RETURN_IF_ERROR(copy_next(event)); break;
      case EventKind::kConfirmed:
        if (!verdicts_.is_lost(event.holder)) answer(event);
        break;
      case EventKind::kReturns: STORMO_RETURN_IF_ERROR(take_answer(event)); break;
      case EventKind::kAgain:
        if (worker(w).ended || !is_awaited(event)) break;
        if (is_stuck()) return deadlock();  // they would ask again for ever
        send(w, event.server);
        break;
      case EventKind::kComputed: STORMO_RETURN_IF_ERROR(end_computing(w)); break;
      case EventKind::kCrash:
        if (cluster_.crash_ends_run && !worker(w).ended) {
          outcome_.lost = "worker " + std::to_string(w);
          break;
        }
        [[fallthrough]];
      case EventKind::kLeaves: STORMO_RETURN_IF_ERROR(end_worker(w)); break;
      case EventKind::kServerCrash: STORMO_RETURN_IF_ERROR(lose_server(event.server)); break;
    }
    return ask_again();
  }

  /// The request of the worker that waits at the server; null: none does.
  const VirtualEvent* blocked_request(int w, int s) const {
    const VirtualWorker& from = of(workers_, w);
    const auto& blocked = of(shards_, s).blocked;
    const auto found = std::ranges::find_if(
        blocked, [&](const VirtualEvent& e) { return e.worker == w && e.request == from.request; });
    return found == blocked.end() || !of(from.waits_for, s) ? nullptr : &*found;
  }
  /// Whether every worker that is left has waiting requests only, and no crash is to come. Then no
  /// shard changes any more.
  bool is_stuck() const {
    if (crashes_to_come_ > 0) return false;
    for (int w = 0; w < cluster_.workers; ++w) {
      const VirtualWorker& me = of(workers_, w);
      if (me.ended) continue;
      if (me.replies == 0) return false;
      for (int s = 0; s < cluster_.servers; ++s) {
        if (of(me.waits_for, s) && blocked_request(w, s) == nullptr) return false;
      }
    }
    return true;
  }
  Status deadlock() const {
    constexpr int kMostNamed = 4;
    std::string names;
    int count = 0;
    for (int w = 0; w < cluster_.workers; ++w) {
      for (int s = 0; s < cluster_.servers; ++s) {
        const VirtualEvent* request = blocked_request(w, s);
        if (request == nullptr || ++count > kMostNamed) continue;
        const ShardState& state = of(outcome_.servers, s);
        names += (count > 1 ? "; worker " : "worker ") + std::to_string(w) + " waits to " +
                 (request->reads ? "read" : "push") + " at server " + std::to_string(s) +
                 " (version " + std::to_string(state.version) + ", " +
                 std::to_string(state.pending) + " pending gradients)";
      }
    }
    if (count > kMostNamed) names += "; and " + std::to_string(count - kMostNamed) + " more";
    return Status(Code::kCorrupt,
                  "policy " + std::string(policy_.name()) +
                      " lets no worker go on, and nothing will change that: " + names +
                      ". Use another policy, or change when this one lets workers read and push");
  }

  Status end_computing(int w) {
    if (worker(w).ended) return {};
    ++of(outcome_.steps, w);
    if (events_.computed) {
      STORMO_RETURN_IF_ERROR(events_.computed(w, worker(w).step, now_));
    }
    if (!is_push_due(w)) return end_step(w);
    to_all_servers(/*reads=*/false, w);
    return {};
  }

  Status end_worker(int w) {
    if (std::exchange(worker(w).ended, true)) return {};
    worker(w).request = 0;  // it waits for nothing
    outcome_.time = std::max(outcome_.time, now_);
    for (int s = 0; s < cluster_.servers; ++s) {
      std::erase_if(shard(s).blocked, [w](const VirtualEvent& e) { return e.worker == w; });
      const VirtualEvent leaves{.kind = EventKind::kLeaves, .worker = w, .server = s};
      STORMO_RETURN_IF_ERROR(execute(leaves).status());
    }
    return {};
  }

  Status arrive(const VirtualEvent& request) {
    if (verdicts_.is_lost(request.holder) || worker(request.worker).ended) return {};
    auto& blocked = shard(request.server).blocked;
    const bool is_there = std::ranges::any_of(blocked, [&](const VirtualEvent& e) {
      return e.worker == request.worker && e.request == request.request;
    });
    if (is_there) return {};
    STORMO_ASSIGN_OR_RETURN(const bool taken, execute(request));
    if (!taken) blocked.push_back(request);
    return {};
  }

  /// The server that holds the shard executes a request, or that a worker leaves. False if it has
  /// to wait.
  Result<bool> execute(const VirtualEvent& event) {
    STORMO_ASSIGN_OR_RETURN(const Taken taken,
                            transition(policy_, cluster_.exchanges, server(event.server), event));
    if (taken.waits) return false;
    VirtualWorker& from = worker(event.worker);
    if (event.kind == EventKind::kArrives) from.waited = std::max(from.waited, now_ - event.at);
    changed_.push_back(event.server);
    VirtualShard& at = shard(event.server);
    if (at.copy) {
      at.unconfirmed.push_back({event, taken});
      schedule(cluster_.latency,
               {.kind = EventKind::kCopied, .server = event.server, .holder = at.holder});
      return true;
    }
    STORMO_RETURN_IF_ERROR(tell(event, taken));
    if (event.kind == EventKind::kArrives) answer(event);
    return true;
  }

  /// The copy executes what comes next, and so is equal.
  Status copy_next(const VirtualEvent& event) {
    VirtualShard& at = shard(event.server);
    if (!at.copy || at.unconfirmed.empty()) return {};  // a server was lost
    VirtualShard::Done done = std::move(at.unconfirmed.front());
    at.unconfirmed.pop_front();
    STORMO_RETURN_IF_ERROR(copy(*at.copy, done));
    if (done.event.kind != EventKind::kArrives) return {};
    done.event.kind = EventKind::kConfirmed;
    schedule(cluster_.latency, done.event);
    return {};
  }
  Status copy(ShardState& to, const VirtualShard::Done& done) {
    STORMO_ASSIGN_OR_RETURN(const Taken taken,
                            transition(policy_, cluster_.exchanges, to, done.event));
    if (taken == done.taken) return tell(done.event, taken);
    return Status(Code::kCorrupt, "a server and its copy decide differently");
  }

  /// What is sure: no loss of a server takes it back.
  Status tell(const VirtualEvent& event, const Taken& taken) {
    if (event.kind == EventKind::kLeaves) {
      if (!events_.left) return {};
      return events_.left(event.worker, event.server, taken.updates);
    }
    if (!event.reads) {
      if (!events_.pushed) return {};
      return events_.pushed(event.server, push_of(event), taken.decision);
    }
    return events_.read && !taken.repeated ? events_.read(event.worker, event.server) : Status();
  }

  // Requests that were on their way to it, or waited there, are lost; workers send them again, to
  // the server that goes on with its shard.
  Status lose_server(int lost) {
    if (std::ranges::all_of(workers_, &VirtualWorker::ended) || !verdicts_.lose(lost)) return {};
    for (int s = 0; s < cluster_.servers; ++s) {
      VirtualShard& at = shard(s);
      if (at.holder == lost) {
        if (!at.copy) {
          outcome_.lost = "server " + std::to_string(lost);
          return {};
        }
        STORMO_RETURN_IF_ERROR(take_over(s));
      } else if (at.copy && successor(at.holder, cluster_.servers) == lost) {
        at.copy.reset();
        for (const VirtualShard::Done& done : std::exchange(at.unconfirmed, {})) {
          STORMO_RETURN_IF_ERROR(tell(done.event, done.taken));
          if (done.event.kind == EventKind::kArrives) answer(done.event);
        }
      }
    }
    return {};
  }
  /// By the server that has the copy. Who has left, it learns from the chief.
  Status take_over(int s) {
    VirtualShard& at = shard(s);
    server(s) = *at.copy;
    at.copy.reset();
    at.holder = successor(at.holder, cluster_.servers);
    at.blocked.clear();
    for (const VirtualShard::Done& done : std::exchange(at.unconfirmed, {})) {
      if (done.event.kind == EventKind::kLeaves) {
        STORMO_RETURN_IF_ERROR(execute(done.event).status());
      }
    }
    changed_.push_back(s);
    return {};
  }

  // Until no server that has changed can answer another one.
  Status ask_again() {
    while (!changed_.empty()) {
      const int s = changed_.back();
      changed_.pop_back();
      auto& waiting = shard(s).blocked;
      for (std::size_t i = 0; i < waiting.size();) {
        STORMO_ASSIGN_OR_RETURN(const bool taken, execute(waiting[i]));
        if (taken) {
          waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
          ++i;
        }
      }
    }
    return {};
  }

  const VirtualCluster& cluster_;
  const Policy& policy_;
  const VirtualEvents& events_;
  std::vector<VirtualWorker> workers_;
  std::priority_queue<VirtualEvent, std::vector<VirtualEvent>, std::greater<>> queue_;
  std::vector<VirtualShard> shards_;
  std::vector<int> changed_;  // shards with a transition since ask_again()
  Rng network_;
  ServerVerdicts verdicts_;
  std::int64_t pool_;
  std::size_t crashes_to_come_;
  std::int64_t next_event_ = 0;
  Duration now_{};
  VirtualOutcome outcome_;
};

Status check_losses(const VirtualCluster& cluster) {
  if (!(cluster.loss >= 0 && cluster.loss < 1) || cluster.timeout <= Duration::zero()) {
    return invalid_argument(
        "virtual time needs a probability of lost messages from 0 to less than 1, and a time-out");
  }
  if (cluster.backups && cluster.servers < 2) {
    return invalid_argument("a copy is at another server, and there is only one; use 2 or more");
  }
  for (const VirtualCluster::ServerCrash& crash : cluster.server_crashes) {
    if (crash.server >= 0 && crash.server < cluster.servers) continue;
    return invalid_argument("server " + std::to_string(crash.server) +
                            " crashes, but servers are 0 to " +
                            std::to_string(cluster.servers - 1));
  }
  return {};
}

}  // namespace

Result<VirtualOutcome> run_virtual(const VirtualCluster& cluster, const Policy& policy,
                                   const VirtualEvents& events) {
  if (cluster.workers < 1 || cluster.servers < 1 || cluster.steps < 0 || cluster.read_every < 1 ||
      cluster.push_every < 1 || cluster.jitter < 0 || cluster.jitter >= 1) {
    return invalid_argument(
        "virtual time needs at least 1 worker and 1 server, steps >= 0, read_every and push_every "
        ">= 1, and 0 <= jitter < 1");
  }
  const bool has_all = cluster.times.size() == static_cast<std::size_t>(cluster.workers) &&
                       std::ranges::none_of(cluster.times, &std::vector<StepTime>::empty);
  if (!cluster.times.empty() && !has_all) {
    return invalid_argument("recorded times are needed of a step of every worker, or of none");
  }
  for (const VirtualCluster::Crash& crash : cluster.crashes) {
    if (crash.worker < 0 || crash.worker >= cluster.workers) {
      return invalid_argument("worker " + std::to_string(crash.worker) +
                              " crashes, but workers are "
                              "0 to " +
                              std::to_string(cluster.workers - 1));
    }
  }
  STORMO_RETURN_IF_ERROR(check_losses(cluster));
  return VirtualRun(cluster, policy, events).run();
}

}  // namespace stormo::protocol
