#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/optim/update_lane.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/transport/memory/memory_file.h>
#include <stormo/transport/shm/peer_process.h>

namespace stormo::train {

/// One copy of parameters and optimizer state for the processes of a host, any of which may be
/// killed (docs/adr/0039-elastic-host-shared.md).
///
/// It lies in a memory file that lives as long as one of them. Every process has an Optimizer of
/// whole parameters over it, and updates a part of them. What it saves while it does so lies in
/// shared memory, too, so another one can end its part with the same bits.
class HostCopy {
 public:
  /// Parameters and state. The tensors that lie in it hold it, too.
  using Memory = std::shared_ptr<transport::MemoryFile>;
  /// What a process has of an earlier group.
  struct Kept {
    Memory memory = nullptr;  ///< its memory(), or null
    bool has_values = false;  ///< parameters and state lie there; else they are the process's own
  };

  /// A collective of `host`, the ranks of this host; borrowed, as the optimizer. Its parameters are
  /// those that HostSharedParameters::can_hold(), its rule needs no norms, and it owns all.
  /// `has_state`: else those of another rank count, or, where no rank has it, any.
  static Result<std::unique_ptr<HostCopy>> create(comm::Communicator& host,
                                                  FusedOptimizer& optimizer, const Kept& before,
                                                  bool has_state);
  /// Makes parameters and state this process's own; they lie in a HostCopy's memory.
  static void leave(FusedOptimizer& optimizer);

  const Memory& memory() const { return memory_; }

  /// Performs this rank's part of an update. Gradients are those of whole parameters, and equal on
  /// all ranks of the host; they are borrowed until all parts are done: when all ranks have met, or
  /// after finish(). Not a collective.
  Status update(const StepRate& rate, std::span<const RangeGradient> gradients);
  /// Performs what other ranks have left of this update. Waits for those that work, but for at most
  /// 5 s, and ends by SIGKILL who is stopped or takes longer; `say` gets a line about it. Not a
  /// collective.
  Status finish(const std::function<void(const std::string&)>& say);
  /// When all parts of an update are done: autograd learns that parameters were written.
  void note_changes();
  /// The sum of squares of this rank's part of these gradients. Not a collective.
  double gradient_squares(std::span<const RangeGradient> gradients) const;

 private:
  /// A lane's part of a parameter.
  struct Block {
    std::size_t parameter = 0;
    std::int64_t begin = 0, end = 0;  // elements
  };
  struct Owner {
    int rank = 0;
    std::int64_t file = 0;    // number of the memory that it has and that is used again; 0: none
    bool has_values = false;  // in it, and all who have the state have it there
  };

  HostCopy(comm::Communicator& host, FusedOptimizer& optimizer)
      : host_(host), optimizer_(optimizer) {}
  Result<Owner> find_owner(const Kept& before, bool has_state);
  Status map(const Owner& owner, const Memory& before);
  std::vector<torch::Tensor> arrays_in_memory() const;
  void divide();
  std::size_t own_lane(int lane) const;
  optim::UpdateLane lane(std::size_t index) const;
  optim::UpdateLane::Work work_on(std::size_t lane) const;
  optim::UpdateJournal::Changes changes_of(const Block& block) const;
  void do_lane(std::size_t index, std::uint32_t before);
  Status end_lane(std::size_t index, const std::function<void(const std::string&)>& say);

  comm::Communicator& host_;
  FusedOptimizer& optimizer_;
  Memory memory_;
  Memory lanes_memory_;                            // of this group
  std::vector<transport::ProcessName> processes_;  // by rank
  int lanes_of_rank_ = 1;
  std::vector<std::vector<Block>> blocks_;  // by lane: those of rank 0, then of rank 1 ...
  std::uint64_t number_ = 0;                // of the last update in this group
  std::vector<RangeUpdate> updates_;
  std::vector<const RangeUpdate*> update_of_;  // by parameter; null: it has no gradient
};

}  // namespace stormo::train
