#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <stormo/c10d/work.h>

namespace c10d {
struct ProcessGroupStatus;
}

// What PyTorch's own tools see of the operations of a group.
namespace stormo::c10d {

/// An event record_param_comms: torch.profiler then shows the group of the operation, its sequence
/// number and its sizes.
void tell_profiler(const ::c10d::Backend& group, const StormoWork::Description& operation);

/// The operations of a group in the flight recorder of PyTorch: the last TORCH_FR_BUFFER_SIZE ones
/// of this process. When the group fails, all of the process are written to a file for torchfrtrace
/// (docs/guides/pytorch.md). Thread-safe.
class FlightRecords : public std::enable_shared_from_this<FlightRecords> {
 public:
  using Name = std::tuple<std::string, std::string>;  ///< of a group, and its description

  /// Null without TORCH_FR_BUFFER_SIZE. `global_ranks` of all members; empty: 0, 1, ...
  static std::shared_ptr<FlightRecords> of(std::shared_ptr<GroupLink> link,
                                           const ::c10d::Backend& group,
                                           std::vector<std::uint64_t> global_ranks);
  /// Before operations of `group` run.
  std::unique_ptr<OperationRecord> begin(const ::c10d::Backend& group,
                                         const StormoWork::Description& operation);
  /// The group ends. If it has failed, the file is there afterwards. It may wait for the
  /// interpreter of Python, because stacks are in it.
  void leave();
  /// All of this process, as a pickle. Empty without TORCH_FR_BUFFER_SIZE.
  static std::string dump();

 private:
  friend class FlightWatch;
  class Recorded;
  /// Where the analyser finds an operation, and under which name.
  struct Place {
    Name group;
    std::uint64_t sequence = 0;
    std::string title{};
  };

  FlightRecords(std::shared_ptr<GroupLink> link, std::size_t own_rank,
                std::vector<std::uint64_t> global_ranks);
  Place place_of(const StormoWork::Description& operation);
  Place place_of_message(bool is_send, Rank peer, int tag);

  const std::shared_ptr<GroupLink> link_;
  const std::size_t id_;
  const std::size_t own_rank_;
  const std::vector<std::uint64_t> global_ranks_;
  const std::shared_ptr<::c10d::ProcessGroupStatus> status_;  // written before it is dumped
  std::atomic<std::int64_t> last_begun_{-1}, last_completed_{-1};
  std::mutex mutex_;
  Name name_;  // guarded by mutex_, as what follows
  bool is_named_ = false;
  std::map<Name, std::uint64_t> num_messages_;  // from one rank to another with one tag
};

}  // namespace stormo::c10d
