#include <stormo/server/ledger/record_times.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace stormo::server {
namespace {

using protocol::StepTime;
using Kind = ShardEvent::Kind;

/// Of a shard: the change number n comes before the reads that saw it.
std::pair<std::uint64_t, bool> order(const ShardEvent* e) {
  return {e->commit, e->kind == Kind::kRead};
}

/// Raises times until they agree with the recorded order, each as little as possible.
class Clocks {
 public:
  explicit Clocks(std::span<const std::vector<ShardEvent>> events)
      : workers_(events.begin(), events.end()) {
    for (auto& worker : workers_) {
      for (ShardEvent& e : worker) shards_[e.shard].push_back(&e);
    }
    for (auto& [shard, of_shard] : shards_) std::ranges::stable_sort(of_shard, {}, order);
    while (raise()) {
    }
  }
  const std::vector<std::vector<ShardEvent>>& workers() const { return workers_; }

 private:
  static bool raise(ShardEvent& e, std::int64_t to) {
    if (e.at_ns >= to) return false;
    e.at_ns = to;
    return true;
  }
  bool raise() {
    bool any = false;
    for (auto& worker : workers_) {
      for (std::size_t i = 1; i < worker.size(); ++i) any |= raise(worker[i], worker[i - 1].at_ns);
    }
    for (auto& [shard, events] : shards_) {
      std::int64_t change = 0, latest = 0;  // the last change, and what came last
      for (ShardEvent* e : events) {
        const bool is_read = e->kind == Kind::kRead;
        any |= raise(*e, (is_read ? change : latest) + 1);
        latest = std::max(latest, e->at_ns);
        if (!is_read) change = e->at_ns;
      }
    }
    return any;
  }

  std::vector<std::vector<ShardEvent>> workers_;
  std::map<std::uint32_t, std::vector<ShardEvent*>> shards_;
};

/// Of a worker that begins at `from`. A step is read last before it is pushed first.
std::vector<StepTime> times_of(const std::vector<ShardEvent>& events, std::int64_t from) {
  std::vector<StepTime> out;
  std::int64_t read = from, pushed = from;
  for (const ShardEvent& e : events) {
    if (e.kind == Kind::kRead) read = e.at_ns;
    if (e.kind != Kind::kPush || e.step < out.size()) continue;
    out.push_back({.rest = Duration(read - pushed), .compute = Duration(e.at_ns - read)});
    pushed = e.at_ns;
  }
  return out;
}

/// From the last push to the leaving that follows it; none: 0.
Duration leave_of(const std::vector<ShardEvent>& events) {
  std::int64_t pushed = 0, left = 0;
  for (const ShardEvent& e : events) {
    if (e.kind == Kind::kPush) pushed = e.at_ns;
    if (e.kind == Kind::kLeave) left = e.at_ns;
  }
  return Duration(std::max<std::int64_t>(left - pushed, 0));
}

}  // namespace

Result<RecordedTimes> recorded_times(std::span<const std::vector<ShardEvent>> events) {
  const Clocks clocks(events);
  std::int64_t from = INT64_MAX;
  for (const auto& worker : clocks.workers()) {
    if (!worker.empty()) from = std::min(from, worker.front().at_ns);
  }
  RecordedTimes out;
  for (const auto& worker : clocks.workers()) {
    out.steps.push_back(times_of(worker, from));
    if (out.steps.back().empty()) {
      return Status(Code::kCorrupt, "worker " + std::to_string(out.steps.size() - 1) +
                                        " has no step in the record");
    }
    out.leaves.push_back(leave_of(worker));
  }
  return out;
}

Result<std::vector<std::pair<int, ShardEvent>>> recorded_order(
    std::span<const std::vector<ShardEvent>> events) {
  std::map<std::uint32_t, std::vector<const ShardEvent*>> left;  // by shard, the next one last
  for (const auto& worker : events) {
    for (const ShardEvent& e : worker) left[e.shard].push_back(&e);
  }
  for (auto& [shard, of_shard] : left) std::ranges::sort(of_shard, std::greater(), order);
  std::vector<std::size_t> next(events.size());  // by worker
  // the next event of a worker comes when it is the next one of its shard, where reads of one
  // version are in no order
  std::vector<std::pair<int, ShardEvent>> out;
  for (bool any = true; std::exchange(any, false);) {
    for (std::size_t w = 0; w < events.size(); ++w) {
      for (; next[w] < events[w].size(); ++next[w], any = true) {
        const ShardEvent& e = events[w][next[w]];
        if (order(&e) != order(left[e.shard].back())) break;
        left[e.shard].pop_back();
        out.emplace_back(static_cast<int>(w), e);
      }
    }
  }
  for (std::size_t w = 0; w < events.size(); ++w) {
    if (next[w] == events[w].size()) continue;
    return Status(Code::kCorrupt, "the record is not whole: events of some worker are missing");
  }
  return out;
}

}  // namespace stormo::server
