#pragma once

#include <atomic>
#include <cstdint>

#include <stormo/comm/communicator.h>

namespace stormo::train {

/// What the workers of an asynchronous run tell each other without waiting: how far they are, their
/// losses, and that the round should end. In memory that the ranks of one host share.
class WorkerProgress {
 public:
  /// A collective. `world` is borrowed. Throws Error.
  explicit WorkerProgress(comm::Communicator& world);
  /// A collective, unless the group has failed.
  ~WorkerProgress();
  WorkerProgress(const WorkerProgress&) = delete;

  /// This rank has done one more step.
  void add_step(double loss_sum, std::int64_t samples);
  struct Totals {
    double loss_sum = 0;
    std::int64_t samples = 0;
  };
  /// Of all steps of all workers, about now.
  Totals totals() const;

  /// All workers end their round after the step that they are in.
  void call();
  bool called() const;
  /// The round has ended. By one rank, while no other one is in a round.
  void clear();

 private:
  struct alignas(64) Entry {
    std::atomic<double> loss_sum{0};
    std::atomic<std::int64_t> samples{0};
    std::atomic<bool> called{false};
  };
  Entry& mine() const { return entries_[world_.rank()]; }

  comm::Communicator& world_;
  Entry* entries_ = nullptr;  // by rank, in the Arena of rank 0
};

}  // namespace stormo::train
