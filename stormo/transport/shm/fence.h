#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include <stormo/base/clock.h>
#include <stormo/transport/health.h>
#include <stormo/transport/shm/host_region.h>

namespace stormo::transport {

/// Prevents the ranks of a host from accessing each other's memory after their group has failed
/// (docs/adr/0007-fence.md). A rank may access memory of its peers only between enter() and
/// leave(). close() returns when no peer is between them and no peer can enter any more.
class Fence {
 public:
  /// How long a running peer has to leave before it is killed.
  static constexpr Duration kPatience = std::chrono::seconds(5);

  /// `say` is called with a line about each peer that is killed or that stays longer than
  /// `patience`.
  Fence(std::shared_ptr<HostRegion> region, int rank, std::function<void(std::string_view)> say,
        Duration patience = kPatience, OnStopped on_stopped = OnStopped::kEnd);

  /// False when the group is closed: this rank must then access only its own memory. Sequentially
  /// consistent with close(): either this rank sees that the group is closed, or close() sees this
  /// rank inside.
  bool enter() {
    region_->cell(rank_).inside.store(1, std::memory_order_seq_cst);
    if (!is_closed()) [[likely]]
      return true;
    leave();
    return false;
  }
  void leave() { region_->cell(rank_).inside.store(0, std::memory_order_release); }

  bool is_closed() const { return region_->closed().load(std::memory_order_seq_cst) != 0; }

  /// Blocks; when it returns, no other rank of the host accesses this rank's memory now or later.
  /// Processes that do not leave within `patience` are ended by SIGKILL; one that is stopped at
  /// once, or with OnStopped::kWait it is waited for until it is continued or ends. For threads of
  /// this process it waits without limit. A process that this one may not signal (in another PID
  /// namespace) may still write after `patience`; `say` then reports this.
  void close();

 private:
  void keep_out(int peer, TimePoint patient_until);

  std::shared_ptr<HostRegion> region_;
  const int rank_;
  const std::function<void(std::string_view)> say_;
  const Duration patience_;
  const OnStopped on_stopped_;
};

}  // namespace stormo::transport
