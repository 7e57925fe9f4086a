#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include <stormo/base/clock.h>
#include <stormo/transport/shm/host_region.h>

namespace stormo::transport {

/// Keeps the ranks of a host out of each other's memory once their group has failed
/// (docs/adr/0007-fence.md). A rank uses memory of its peers between enter() and leave() only;
/// close() returns when no peer is between them any more, nor ever will be.
class Fence {
 public:
  /// A peer that runs has so long to leave, before it is ended.
  static constexpr Duration kPatience = std::chrono::seconds(5);

  /// `say` gets a line about each peer that is ended or waited for beyond `patience`.
  Fence(std::shared_ptr<HostRegion> region, int rank, std::function<void(std::string_view)> say,
        Duration patience = kPatience);

  /// False when the group is closed: this rank must then keep to its own memory. Sequentially
  /// consistent against close(): either this rank sees it closed, or close() sees it inside.
  bool enter() {
    region_->cell(rank_).inside.store(1, std::memory_order_seq_cst);
    if (!is_closed()) [[likely]]
      return true;
    leave();
    return false;
  }
  void leave() { region_->cell(rank_).inside.store(0, std::memory_order_release); }

  bool is_closed() const { return region_->closed().load(std::memory_order_seq_cst) != 0; }

  /// When it returns, no other rank of the host reads or writes this one's memory, nor will.
  /// Processes that are stopped, or do not leave within `patience`, are ended by SIGKILL; threads
  /// of this process are waited for without bound. Only of a process that this one may not signal
  /// (in another PID namespace) nothing is known after `patience`: then `say` is told so.
  void close();

 private:
  void keep_out(int peer, TimePoint patient_until);

  std::shared_ptr<HostRegion> region_;
  const int rank_;
  const std::function<void(std::string_view)> say_;
  const Duration patience_;
};

}  // namespace stormo::transport
