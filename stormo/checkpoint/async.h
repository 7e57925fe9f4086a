#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <stormo/base/status.h>
#include <stormo/checkpoint/format/piece.h>
#include <stormo/comm/communicator.h>

namespace stormo::checkpoint {

/// Writes checkpoints during training. The state changes only in updates, so a thread copies it
/// during the next forward and backward, and the update waits until the copy is complete. The copy
/// is then written in the background (lazy snapshot, as in DataStates-LLM).
///
///   begin(snapshot)  ->  forward, backward  ->  before_update()  ->  update  ->  ...
///
/// Every rank makes the same calls in the same order. Cost: memory for one copy of this rank's
/// pieces, which is kept for the next save. The thread uses a subgroup of its own.
class AsyncCheckpoint {
 public:
  /// A collective. Keeps the newest `keep` checkpoints in `directory`.
  static Result<std::unique_ptr<AsyncCheckpoint>> create(comm::Communicator& world,
                                                         std::string directory, int keep);
  /// Blocks until a save that is still being written is complete.
  ~AsyncCheckpoint();
  AsyncCheckpoint(const AsyncCheckpoint&) = delete;
  AsyncCheckpoint& operator=(const AsyncCheckpoint&) = delete;

  /// Blocks until the previous save is complete, then starts a new one. If the previous save
  /// failed, returns its failure, the same on every rank, and starts nothing; older checkpoints are
  /// not affected, and the next call tries again. The values must not change before before_update()
  /// returns: values that change earlier (buffers that a forward updates) must be copies, owned by
  /// Piece::owner. A rank that could not make its snapshot passes the failure.
  Status begin(Result<Snapshot> snapshot);
  /// Blocks until all values are copied; returns immediately if nothing is being copied.
  void before_update();
  /// Whether a save has failed and its failure was not returned yet. Does not block; ranks may
  /// learn of the same failure at different times.
  bool failed();
  /// The path of the last successful save; empty if there is none. Does not block.
  std::string last_saved();
  /// Blocks until the save is on the disk. Returns its path or its failure, once; empty if there is
  /// none.
  Result<std::string> finish();

 private:
  AsyncCheckpoint(std::unique_ptr<comm::Communicator> group, std::string directory, int keep);
  void save(Result<Snapshot>& snapshot);
  Status copy(Snapshot& snapshot);

  std::unique_ptr<comm::Communicator> group_;
  std::string directory_;
  int keep_;
  std::unique_ptr<std::byte[]> memory_;  // of the copies
  std::size_t capacity_ = 0;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool copied_ = true;
  Result<std::string> outcome_ = std::string();
  std::string last_saved_;
};

}  // namespace stormo::checkpoint
