#include <stormo/train/simulate/replay.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include <stormo/train/simulate/served_workers.h>

namespace stormo::train {
namespace {

using server::ShardEvent;
using Kind = ShardEvent::Kind;
using OnStep = std::function<void(const ReplayedStep&)>;

/// An event of a shard in the order of the record.
struct Ordered {
  ShardEvent event;
  int worker = 0;
  /// The change number n comes before all reads that saw it.
  std::pair<std::uint64_t, bool> order() const { return {event.commit, event.kind == Kind::kRead}; }
};

class Replay {
 public:
  Replay(ServedWorkers& workers, std::span<const std::vector<ShardEvent>> events,
         const OnStep& on_step)
      : workers_(workers),
        on_step_(on_step),
        of_shard_(static_cast<std::size_t>(workers.shards())) {
    for (std::size_t w = 0; w < events.size(); ++w) {
      of_worker_.push_back({.events = {events[w].begin(), events[w].end()}});
      for (const ShardEvent& e : events[w]) {
        if (e.shard < of_shard_.size()) {
          of_shard_[e.shard].push_back({e, static_cast<int>(w)});
        }
      }
    }
    for (auto& shard : of_shard_) std::ranges::stable_sort(shard, {}, &Ordered::order);
  }

  // An event is due when it is the next one of its worker and of its shard. The order of the run is
  // one in which all come; any other such order gives the same.
  Result<std::int64_t> run() {
    for (bool any = true; any;) {
      any = false;
      for (std::size_t w = 0; w < of_worker_.size(); ++w) {
        while (!of_worker_[w].events.empty() && is_due(static_cast<int>(w))) {
          STORMO_RETURN_IF_ERROR(execute(static_cast<int>(w)));
          any = true;
        }
      }
    }
    for (const Worker& w : of_worker_) {
      if (!w.events.empty()) {
        return Status(Code::kCorrupt, "the record is not whole: events of some worker are missing");
      }
    }
    workers_.finish();
    return computed_;
  }

 private:
  struct Worker {
    std::deque<ShardEvent> events;             // that are left
    std::uint64_t computed = 0;                // steps
    std::vector<std::uint64_t> sequence = {};  // of the next push, by shard
  };

  bool is_due(int w) const {
    const Worker& worker = of_worker_[static_cast<std::size_t>(w)];
    const ShardEvent& next = worker.events.front();
    if (next.shard >= of_shard_.size() || of_shard_[next.shard].empty()) return false;
    const Ordered& first = of_shard_[next.shard].front();
    // reads of one version are in no order
    if (next.kind == Kind::kRead && first.event.kind == Kind::kRead) {
      return next.commit == first.event.commit;
    }
    return first.worker == w && first.event == next;
  }

  Status execute(int w) {
    Worker& worker = of_worker_[static_cast<std::size_t>(w)];
    const ShardEvent event = worker.events.front();
    worker.events.pop_front();
    auto& shard = of_shard_[event.shard];
    const auto self = std::ranges::find_if(
        shard, [&](const Ordered& o) { return o.worker == w && o.event == event; });
    shard.erase(self);
    const Result<std::uint64_t> commit = perform(worker, w, event);
    // where an event is missing, a shard may wait for it
    const bool waits = commit.status().code() == Code::kDeadlineExceeded;
    if (!waits) STORMO_RETURN_IF_ERROR(commit.status());
    if (!waits && *commit == event.commit) return {};
    return Status(Code::kCorrupt,
                  "worker " + std::to_string(w) + ", step " + std::to_string(event.step + 1) +
                      ": shard " + std::to_string(event.shard) +
                      " went another way than in the record; is it whole, and of this recipe?");
  }

  Result<std::uint64_t> perform(Worker& worker, int w, const ShardEvent& event) {
    const int s = static_cast<int>(event.shard);
    worker.sequence.resize(of_shard_.size());
    switch (event.kind) {
      case Kind::kRead: return workers_.read(w, s);
      case Kind::kLeave: return workers_.leave(w, s);
      case Kind::kJoin: {
        STORMO_ASSIGN_OR_RETURN(const auto joined, workers_.shard(w, s).join());
        worker.sequence[event.shard] = joined.sequence;
        return joined.commit;
      }
      case Kind::kPush: break;
    }
    if (event.step != worker.computed && event.step + 1 != worker.computed) {
      return Status(Code::kCorrupt, "worker " + std::to_string(w) + " pushes step " +
                                        std::to_string(event.step + 1) + " after step " +
                                        std::to_string(worker.computed));
    }
    if (worker.computed == event.step) {
      STORMO_ASSIGN_OR_RETURN(const StepOutcome outcome,
                              workers_.compute(w, w, static_cast<std::int64_t>(event.step)));
      ++worker.computed;
      ++computed_;
      const double samples = static_cast<double>(std::max<std::int64_t>(1, outcome.samples));
      if (on_step_) {
        on_step_({.worker = w,
                  .step = static_cast<std::int64_t>(event.step),
                  .samples = outcome.samples,
                  .loss = outcome.loss_sum / samples});
      }
    }
    STORMO_ASSIGN_OR_RETURN(const auto pushed, workers_.push(w, s, worker.sequence[event.shard]++));
    return pushed.commit;
  }

  ServedWorkers& workers_;
  const OnStep& on_step_;
  std::vector<Worker> of_worker_;
  std::vector<std::deque<Ordered>> of_shard_;
  std::int64_t computed_ = 0;
};

}  // namespace

Result<std::int64_t> replay(const Task& task, const data::Dataset& data,
                            const TrainerOptions& options, std::int64_t steps,
                            std::span<const std::vector<ShardEvent>> events,
                            const OnStep& on_step) {
  if (!options.strategy.exchange.every_step()) {
    return invalid_argument(
        "workers with copies of their own (fetch_every, push_every) are neither recorded nor "
        "replayed; use 1");
  }
  STORMO_ASSIGN_OR_RETURN(
      const auto workers,
      ServedWorkers::create(task, data, options, static_cast<int>(events.size()), steps));
  return Replay(*workers, events, on_step).run();
}

}  // namespace stormo::train
