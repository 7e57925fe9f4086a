#include <stormo/protocol/worker_stalls.h>

#include <algorithm>

#include <stormo/base/units.h>

namespace stormo::protocol {
namespace {

/// "worker 2 waits", "workers 0, 2 wait".
std::string who_wait(const std::vector<int>& waiting) {
  constexpr std::size_t kMostNamed = 8;
  std::string text = waiting.size() == 1 ? "worker " : "workers ";
  for (std::size_t i = 0; i < waiting.size() && i < kMostNamed; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(waiting[i]);
  }
  if (waiting.size() > kMostNamed) {
    text += " and " + std::to_string(waiting.size() - kMostNamed) + " more";
  }
  return text + (waiting.size() == 1 ? " waits" : " wait");
}

}  // namespace

void WorkerStalls::note(int worker, const WorkerPace& state, Duration now) {
  const auto [found, is_new] =
      workers_.try_emplace(worker, Worker{.state = state, .since = now, .waits_since = now});
  if (is_new) return;
  Worker& w = found->second;
  const bool got_on = state.progress != w.state.progress;
  if (got_on && !w.state.waits && w.state.steps > 0) {
    slowest_step_ = std::max(slowest_step_, now - w.since);
  }
  if (state.waits && !w.state.waits) w.waits_since = now;
  if (got_on || state.waits != w.state.waits) {
    w.since = now;
    w.warned = false;
  }
  w.state = state;
}

void WorkerStalls::finish(int worker, Duration now) {
  Worker& w = workers_[worker];
  if (!w.is_through) w.waits_since = now;
  w.is_through = true;
}

std::vector<WorkerStalls::Stall> WorkerStalls::look(Duration now) {
  // who says that it waits, and does not look after it for so long, hangs in its wait
  const StallBounds usual = stall_bounds(limits_, /*started=*/true, slowest_step_);
  const Duration silence = std::min(usual.warn_after, usual.end_after);
  const auto waits = [&](const Worker& w) {
    return w.is_through || (w.state.waits && now - w.since < silence);
  };
  std::vector<int> waiting;
  Duration longest{};
  for (const auto& [worker, w] : workers_) {
    if (!waits(w)) continue;
    waiting.push_back(worker);
    longest = std::max(longest, now - w.waits_since);
  }
  std::vector<Stall> out;
  if (waiting.empty()) return out;
  for (auto& [worker, w] : workers_) {
    if (waits(w) || w.state.progress == 0) continue;
    const StallBounds bounds = stall_bounds(limits_, w.state.steps > 0, slowest_step_);
    const Duration age = std::min(longest, now - w.since);
    const bool ends = age >= bounds.end_after && !w.state.finishes;
    const bool warns = !ends && age >= bounds.warn_after && !w.warned;
    if (!ends && !warns) continue;
    w.warned = true;
    out.push_back({.worker = worker,
                   .ends = ends,
                   .progress = w.state.progress,
                   .text = "has made no progress for " + format_duration(age) + "; " +
                           who_wait(waiting) +
                           (w.state.doing.empty() ? "" : "; its last: " + w.state.doing)});
  }
  return out;
}

}  // namespace stormo::protocol
