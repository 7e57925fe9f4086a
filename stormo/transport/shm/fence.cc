#include <stormo/transport/shm/fence.h>

#include <fmt/format.h>

#include <utility>

#include <stormo/transport/shm/peer_process.h>

namespace stormo::transport {
namespace {

/// How often it is looked whether a peer has left.
constexpr Duration kLook = std::chrono::milliseconds(1);
/// For the kernel to take a process apart. One that takes longer hangs in the kernel, and runs no
/// instruction of its own any more.
constexpr Duration kDying = std::chrono::seconds(5);

}  // namespace

Fence::Fence(std::shared_ptr<HostRegion> region, int rank,
             std::function<void(std::string_view)> say, Duration patience, OnStopped on_stopped)
    : region_(std::move(region)),
      rank_(rank),
      say_(std::move(say)),
      patience_(patience),
      on_stopped_(on_stopped) {
  region_->cell(rank_).process = ProcessName::own();
}

void Fence::close() {
  region_->closed().store(1, std::memory_order_seq_cst);
  const TimePoint patient_until = std::chrono::steady_clock::now() + patience_;
  for (int peer = 0; peer < region_->ranks(); ++peer) {
    if (peer != rank_) keep_out(peer, patient_until);
  }
}

void Fence::keep_out(int peer, TimePoint patient_until) {
  const Cell& cell = region_->cell(peer);
  const auto inside = [&] { return cell.inside.load(std::memory_order_seq_cst) != 0; };
  const bool is_thread = cell.process == region_->cell(rank_).process;
  PeerProcess process(is_thread ? ProcessName{} : cell.process);
  bool is_patient = true;
  const bool waits = on_stopped_ == OnStopped::kWait;
  bool has_waited = false;
  // who is stopped may have been about to write, inside or, by addresses of its own, outside
  while (!process.is_gone() && (process.is_stopped(waits) || inside())) {
    if (waits && process.is_stopped(waits)) {
      if (!std::exchange(has_waited, true)) {
        say_(fmt::format(
            "local rank {} (pid {}) is stopped, and the group has failed: waiting until "
            "it is continued, so that it cannot write into memory that is used again",
            peer, cell.process.pid));
      }
      patient_until = std::chrono::steady_clock::now() + patience_;
      process.wait(kLook);
      continue;
    }
    const bool is_late = std::chrono::steady_clock::now() >= patient_until;
    if (process.can_be_ended() && (is_late || process.is_stopped())) {
      say_(fmt::format(
          "local rank {} (pid {}) {} when the group failed: ended, so that it cannot "
          "write into memory that is used again",
          peer, cell.process.pid, is_late ? "did not leave its operation" : "was stopped"));
      process.end();
      return process.wait(kDying);
    }
    if (is_late && is_patient) {
      say_(
          fmt::format("local rank {} is still in an operation of the failed group, and cannot be "
                      "ended from here: {}",
                      peer, is_thread ? "waiting for it" : "it may still write into its buffers"));
    }
    is_patient = !is_late;
    if (is_late && !is_thread) return;
    process.wait(kLook);
  }
}

}  // namespace stormo::transport
