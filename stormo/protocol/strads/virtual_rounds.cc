#include <stormo/protocol/strads/virtual_rounds.h>

#include <algorithm>
#include <map>
#include <queue>
#include <utility>

namespace stormo::protocol {
namespace {

enum class EventKind : std::uint8_t { kCompute, kSet, kComputed };

struct RoundEvent {
  Duration at{};
  std::int64_t number = 0;  // events at the same time happen in the order of their making
  EventKind kind = EventKind::kCompute;
  int worker = 0;
  std::int64_t round = 0;
  bool operator>(const RoundEvent& other) const {
    return at != other.at ? at > other.at : number > other.number;
  }
};

struct OpenRound {
  ComputeRound message;
  std::size_t set = 0;  // workers
};

struct VirtualWorker {
  Rng rng;
  Duration free{};  // from then on
  Duration computed{};
  std::int64_t set = 0;  // rounds
};

class VirtualRun {
 public:
  VirtualRun(Scheduler& scheduler, const VirtualWorkers& cluster, const RoundEvents& events)
      : scheduler_(scheduler), cluster_(cluster), events_(events) {
    for (int w = 0; w < scheduler.options().workers; ++w) {
      const auto stream = static_cast<std::uint64_t>(w);
      workers_.push_back(
          {.rng = Rng(cluster.seed, "strads worker", stream), .set = scheduler.rounds_done()});
    }
  }

  Result<VirtualRounds> run(std::int64_t rounds) {
    STORMO_RETURN_IF_ERROR(tell(GoOn{rounds}));
    while (!queue_.empty()) {
      const RoundEvent event = queue_.top();
      queue_.pop();
      now_ = event.at;
      if (now_ > kMostVirtualTime) return invalid_argument(kVirtualTimeTooLong);
      STORMO_RETURN_IF_ERROR(handle(event));
    }
    out_.time = now_;
    for (const VirtualWorker& w : workers_) out_.waited.push_back(now_ - w.computed);
    return std::move(out_);
  }

 private:
  VirtualWorker& worker(int w) { return workers_[static_cast<std::size_t>(w)]; }

  void schedule(Duration at, EventKind kind, int worker, std::int64_t round) {
    queue_.push(
        {.at = at, .number = next_event_++, .kind = kind, .worker = worker, .round = round});
  }
  void to_all(EventKind kind, std::int64_t round) {
    for (int w = 0; w < std::ssize(workers_); ++w) {
      schedule(now_ + cluster_.latency, kind, w, round);
    }
  }

  Status tell(const ToScheduler& message) {
    STORMO_ASSIGN_OR_RETURN(const auto answers, scheduler_.step(message));
    for (const FromScheduler& answer : answers) {
      if (const auto* compute = std::get_if<ComputeRound>(&answer)) {
        rounds_.emplace(compute->round, OpenRound{*compute});
        to_all(EventKind::kCompute, compute->round);
      } else if (const auto* set = std::get_if<SetRound>(&answer)) {
        to_all(EventKind::kSet, set->round);
      } else {
        const ComputeRound& round = rounds_.at(std::get<AggregateRound>(answer).round).message;
        STORMO_ASSIGN_OR_RETURN(auto changes, events_.aggregate(round));
        out_.updates += std::ssize(changes);
        STORMO_RETURN_IF_ERROR(tell(RoundAggregated{round.round, std::move(changes)}));
      }
    }
    return {};
  }

  Status handle(const RoundEvent& event) {
    if (event.kind == EventKind::kComputed) return tell(PartComputed{event.worker, event.round});
    VirtualWorker& me = worker(event.worker);
    OpenRound& open = rounds_.at(event.round);
    const ComputeRound& round = open.message;
    if (event.kind == EventKind::kSet) {
      ++me.set;
      STORMO_RETURN_IF_ERROR(events_.set(event.worker, round));
      if (++open.set == workers_.size()) rounds_.erase(event.round);
      return {};
    }
    if (round.after != me.set) {
      return {Code::kCorrupt, "a worker computes from other values than the scheduler knows"};
    }
    STORMO_RETURN_IF_ERROR(events_.compute(event.worker, round));
    const Duration takes = time_of(event.worker, round);
    if (std::max(me.free, now_) > kMostVirtualTime) return invalid_argument(kVirtualTimeTooLong);
    me.free = std::max(me.free, now_) + takes;
    me.computed += takes;
    schedule(me.free + cluster_.latency, EventKind::kComputed, event.worker, round.round);
    return {};
  }

  Duration time_of(int w, const ComputeRound& round) {
    const double slowness =
        w < std::ssize(cluster_.slowness) ? cluster_.slowness[static_cast<std::size_t>(w)] : 1;
    const double factor = 1 + cluster_.jitter * (2 * worker(w).rng.uniform() - 1);
    const double takes = static_cast<double>(cluster_.compute.count()) *
                         static_cast<double>(round.blocks.size()) * slowness * factor;
    // a sum with what was before it is no overflow, and is found to be too long
    const auto most = static_cast<double>(kMostVirtualTime.count()) * 2;
    return Duration(static_cast<std::int64_t>(std::min(takes, most)));
  }

  Scheduler& scheduler_;
  const VirtualWorkers& cluster_;
  const RoundEvents& events_;
  std::vector<VirtualWorker> workers_;
  std::priority_queue<RoundEvent, std::vector<RoundEvent>, std::greater<>> queue_;
  std::map<std::int64_t, OpenRound> rounds_;  // that some worker has not set
  std::int64_t next_event_ = 0;
  Duration now_{};
  VirtualRounds out_;
};

}  // namespace

Result<VirtualRounds> run_virtual(Scheduler& scheduler, std::int64_t rounds,
                                  const VirtualWorkers& workers, const RoundEvents& events) {
  if (workers.jitter < 0 || workers.jitter >= 1 || workers.compute < Duration::zero() ||
      workers.latency < Duration::zero() || workers.compute > kMostVirtualTime ||
      workers.latency > kMostVirtualTime) {
    return invalid_argument(
        "virtual time needs 0 <= jitter < 1, no time below 0 and none over 30 years");
  }
  return VirtualRun(scheduler, workers, events).run(rounds);
}

}  // namespace stormo::protocol
