#include <stormo/protocol/strads/virtual_rounds.h>

#include <algorithm>
#include <utility>

namespace stormo::protocol {

VirtualRounds::VirtualRounds(VirtualWorkers workers, int count)
    : options_(std::move(workers)), waited_(static_cast<std::size_t>(count)) {}

Status VirtualRounds::start() {
  if (options_.jitter < 0 || options_.jitter >= 1 || options_.compute < Duration::zero() ||
      options_.latency < Duration::zero() || options_.compute > kMostVirtualTime ||
      options_.latency > kMostVirtualTime) {
    return invalid_argument(
        "virtual time needs 0 <= jitter < 1, no time below 0 and none over 30 years");
  }
  workers_.clear();
  for (std::size_t w = 0; w < waited_.size(); ++w) {
    workers_.push_back({.rng = Rng(options_.seed, "strads worker", w)});
  }
  ++options_.seed;  // of the next rounds
  now_ = {};
  complete_.clear();
  return {};
}

Status VirtualRounds::begin(std::size_t blocks) {
  const Duration told = now_ + options_.latency;
  Duration complete{};
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    const Duration begins = std::max(workers_[w].free, told);
    STORMO_RETURN_IF_ERROR(check_virtual_time(begins));
    const Duration computes = takes(w, blocks);
    workers_[w].free = begins + computes;
    workers_[w].computed += computes;
    complete = std::max(complete, workers_[w].free + options_.latency);
  }
  complete_.push_back(complete);
  return {};
}

Status VirtualRounds::end() {
  now_ = std::max(now_, complete_.front());
  complete_.pop_front();
  return check_virtual_time(now_);
}

Status VirtualRounds::finish() {
  const Duration took = now_ + options_.latency;
  STORMO_RETURN_IF_ERROR(check_virtual_time(took));
  STORMO_RETURN_IF_ERROR(check_virtual_time(time_ + took));
  time_ += took;
  for (std::size_t w = 0; w < workers_.size(); ++w) waited_[w] += took - workers_[w].computed;
  return {};
}

double VirtualRounds::waited_share() const {
  using Seconds = std::chrono::duration<double>;
  if (time_ == Duration::zero()) return 0;
  double waited = 0;
  for (const Duration w : waited_) waited += Seconds(w).count();
  return waited / (static_cast<double>(waited_.size()) * Seconds(time_).count());
}

Duration VirtualRounds::takes(std::size_t worker, std::size_t blocks) {
  const double slowness = worker < options_.slowness.size() ? options_.slowness[worker] : 1;
  const double factor = 1 + options_.jitter * (2 * workers_[worker].rng.uniform() - 1);
  return scaled(options_.compute, static_cast<double>(blocks) * slowness * factor);
}

}  // namespace stormo::protocol
