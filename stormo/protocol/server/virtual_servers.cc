#include <stormo/protocol/server/virtual_servers.h>

#include <algorithm>
#include <queue>
#include <string>
#include <utility>

#include <stormo/base/rng.h>
#include <stormo/protocol/server/exchange_period.h>
#include <stormo/protocol/server/note_exchange.h>

namespace stormo::protocol {
namespace {

enum class EventKind : std::uint8_t {
  kReadArrives,
  kReadReturns,
  kComputed,
  kPushArrives,
  kPushReturns,
  kLeaves,
  kCrash
};

struct VirtualEvent {
  Duration at{};
  std::int64_t number = 0;  // events at the same time happen in the order of their making
  EventKind kind = EventKind::kReadArrives;
  int worker = 0;
  int server = 0;
  bool operator>(const VirtualEvent& other) const {
    return at != other.at ? at > other.at : number > other.number;
  }
};

struct VirtualWorker {
  Rng rng;
  std::int64_t steps = 0;  // begun
  std::int64_t step = 0;   // number of the current one
  int replies = 0;         // that are missing
  Duration waited{};       // for the reply that took longest
  bool ended = false;
};

class VirtualRun {
 public:
  VirtualRun(const VirtualCluster& cluster, const Policy& policy, const VirtualEvents& events)
      : cluster_(cluster),
        policy_(policy),
        events_(events),
        blocked_(static_cast<std::size_t>(cluster.servers)),
        pool_(cluster.steps * cluster.workers) {
    const auto workers = static_cast<std::size_t>(cluster.workers);
    for (std::size_t w = 0; w < workers; ++w) {
      workers_.push_back({.rng = Rng(cluster.seed, "virtual worker", w)});
    }
    outcome_.servers.assign(static_cast<std::size_t>(cluster.servers), ShardState(cluster.workers));
    outcome_.steps.resize(workers);
    outcome_.reads.resize(workers);
    outcome_.pushes.resize(workers);
    outcome_.waited.resize(workers);
  }

  Result<VirtualOutcome> run() {
    for (const auto& crash : cluster_.crashes) {
      schedule(crash.at, EventKind::kCrash, crash.worker);
    }
    for (int w = 0; w < cluster_.workers; ++w) STORMO_RETURN_IF_ERROR(begin_step(w));
    while (!queue_.empty()) {
      const VirtualEvent event = queue_.top();
      queue_.pop();
      now_ = event.at;
      ++outcome_.events;
      STORMO_RETURN_IF_ERROR(handle(event));
      if (!outcome_.lost.empty() || (events_.ends && events_.ends())) {
        outcome_.time = now_;
        return std::move(outcome_);
      }
    }
    for (const VirtualWorker& w : workers_) {
      if (!w.ended) return Status(Code::kCorrupt, "workers wait for each other for ever");
    }
    return std::move(outcome_);
  }

 private:
  VirtualWorker& worker(int w) { return workers_[static_cast<std::size_t>(w)]; }
  ShardState& server(int s) { return outcome_.servers[static_cast<std::size_t>(s)]; }
  template <class Values>
  static auto& of(Values& values, int index) {
    return values[static_cast<std::size_t>(index)];
  }

  void schedule(Duration after, EventKind kind, int worker, int server = 0) {
    queue_.push({.at = now_ + after,
                 .number = next_event_++,
                 .kind = kind,
                 .worker = worker,
                 .server = server});
  }
  void to_all_servers(EventKind kind, int w, Duration after = {}) {
    worker(w).replies = cluster_.servers;
    for (int s = 0; s < cluster_.servers; ++s) schedule(after + cluster_.latency, kind, w, s);
  }

  /// Of the step that was begun last; null: its times are drawn.
  const StepTime* recorded_time(int w) {
    if (cluster_.times.empty()) return nullptr;
    const auto& all = of(cluster_.times, w);
    return &all[static_cast<std::size_t>(worker(w).steps - 1) % all.size()];
  }

  bool is_last_reply(int w) {
    if (--worker(w).replies > 0) return false;
    of(outcome_.waited, w) += std::exchange(worker(w).waited, {});
    return true;
  }

  bool has_step(int w) const {
    return cluster_.pooled ? pool_ > 0
                           : workers_[static_cast<std::size_t>(w)].steps < cluster_.steps;
  }

  Status begin_step(int w) {
    VirtualWorker& me = worker(w);
    if (!has_step(w)) {
      schedule(w < std::ssize(cluster_.leaves) ? of(cluster_.leaves, w) : Duration{},
               EventKind::kLeaves, w);
      return {};
    }
    me.step = cluster_.pooled ? cluster_.steps * cluster_.workers - pool_ : me.steps;
    --pool_;
    ++me.steps;
    const StepTime* time = recorded_time(w);
    const Duration rest = time != nullptr ? time->rest : Duration{};
    if (!cluster_.exchanges && begins_period(me.steps, cluster_.read_every)) {
      ++of(outcome_.reads, w);
      to_all_servers(EventKind::kReadArrives, w, rest);
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
    schedule(rest + Duration(static_cast<std::int64_t>(static_cast<double>(compute.count()) *
                                                       slowness * jitter)),
             EventKind::kComputed, w);
  }

  Status leave_all(int w) {
    for (int s = 0; s < cluster_.servers; ++s) {
      const bool updates = leave(policy_, server(s), w);
      if (updates) note_update(server(s));
      if (events_.left) STORMO_RETURN_IF_ERROR(events_.left(w, s, updates));
      changed_.push_back(s);
    }
    return {};
  }

  Status handle(const VirtualEvent& event) {
    const int w = event.worker;
    if (worker(w).ended) return {};
    switch (event.kind) {
      case EventKind::kReadArrives:
      case EventKind::kPushArrives: {
        STORMO_ASSIGN_OR_RETURN(const bool taken, take(event));
        if (!taken) of(blocked_, event.server).push_back(event);
        break;
      }
      case EventKind::kReadReturns:
        if (is_last_reply(w)) compute(w);
        break;
      case EventKind::kComputed: {
        VirtualWorker& me = worker(w);
        ++of(outcome_.steps, w);
        if (events_.computed) STORMO_RETURN_IF_ERROR(events_.computed(w, me.step, now_));
        if (is_push_due(w)) {
          ++of(outcome_.pushes, w);
          to_all_servers(EventKind::kPushArrives, w);
        } else {
          STORMO_RETURN_IF_ERROR(end_step(w));
        }
        break;
      }
      case EventKind::kPushReturns:
        if (is_last_reply(w)) STORMO_RETURN_IF_ERROR(end_step(w));
        break;
      case EventKind::kCrash:
        if (cluster_.crash_ends_run) {
          outcome_.lost = "worker " + std::to_string(w);
          return {};
        }
        [[fallthrough]];
      case EventKind::kLeaves:
        worker(w).ended = true;
        outcome_.time = std::max(outcome_.time, now_);
        for (auto& waiting : blocked_) {
          std::erase_if(waiting, [w](const VirtualEvent& e) { return e.worker == w; });
        }
        STORMO_RETURN_IF_ERROR(leave_all(w));
        break;
    }
    return ask_again();
  }

  /// False if it has to wait.
  Result<bool> take(const VirtualEvent& event) {
    ShardState& state = server(event.server);
    const int w = event.worker;
    if (event.kind == EventKind::kReadArrives) {
      STORMO_ASSIGN_OR_RETURN(const bool may, may_read(policy_, state, w));
      if (!may) return false;
      if (events_.read) STORMO_RETURN_IF_ERROR(events_.read(w, event.server));
      note_read(state, w);
      schedule(cluster_.latency, EventKind::kReadReturns, w, event.server);
    } else {
      const Push push{.worker = w, .sequence = state.worker(w).pushes};
      STORMO_ASSIGN_OR_RETURN(const PushDecision decision, decide(policy_, state, push));
      if (decision.action == PushAction::kWait) return false;
      if (events_.pushed) STORMO_RETURN_IF_ERROR(events_.pushed(event.server, push, decision));
      if (cluster_.exchanges) {
        note_exchange(state, push, decision);
      } else {
        note_push(state, push, decision);
      }
      STORMO_RETURN_IF_ERROR(policy_.invariant(state));
      schedule(cluster_.latency, EventKind::kPushReturns, w, event.server);
    }
    worker(w).waited = std::max(worker(w).waited, now_ - event.at);
    changed_.push_back(event.server);
    return true;
  }

  // Until no server that has changed can answer another one.
  Status ask_again() {
    while (!changed_.empty()) {
      const int s = changed_.back();
      changed_.pop_back();
      auto& waiting = of(blocked_, s);
      for (std::size_t i = 0; i < waiting.size();) {
        STORMO_ASSIGN_OR_RETURN(const bool taken, take(waiting[i]));
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
  std::vector<std::vector<VirtualEvent>> blocked_;  // messages that wait, by server
  std::vector<int> changed_;                        // servers with a transition since ask_again()
  std::int64_t pool_;
  std::int64_t next_event_ = 0;
  Duration now_{};
  VirtualOutcome outcome_;
};

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
  return VirtualRun(cluster, policy, events).run();
}

}  // namespace stormo::protocol
