#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <stormo/base/status.h>
#include <stormo/checkpoint/piece.h>
#include <stormo/comm/communicator.h>

namespace stormo::checkpoint {

/// Checkpoints that are written while training goes on. The state changes only in updates, so a
/// thread copies it during the next forward and backward; the update waits for what is left of the
/// copy. The copy is then written in the background (lazy snapshot, as DataStates-LLM).
///
///   begin(snapshot)  ->  forward, backward  ->  before_update()  ->  update  ->  ...
///
/// Every rank makes the same calls in the same order. Costs one copy of this rank's pieces in
/// memory, kept for the next save. The thread talks to the other ranks in a group of its own.
class AsyncCheckpoint {
 public:
  /// A collective. Keeps the newest `keep` checkpoints in `directory`.
  static Result<std::unique_ptr<AsyncCheckpoint>> create(comm::Communicator& world,
                                                         std::string directory, int keep);
  /// Waits for a save that is still being written.
  ~AsyncCheckpoint();
  AsyncCheckpoint(const AsyncCheckpoint&) = delete;
  AsyncCheckpoint& operator=(const AsyncCheckpoint&) = delete;

  /// Starts a save, after waiting for the one before. Returns that one's failure, the same on every
  /// rank: then nothing is started, what was saved earlier is untouched, and the next call tries
  /// again. The values must not change before before_update() returns: what changes in between
  /// (buffers that a forward updates) must be a copy, kept by Piece::owner. A rank that
  /// could not make its snapshot passes the failure.
  Status begin(Result<Snapshot> snapshot);
  /// Returns when all values are copied. At once when nothing is being copied.
  void before_update();
  /// Has a save ended with a failure that nobody has taken yet? At once; ranks may learn of the
  /// same failure at different times.
  bool failed();
  /// The path of the last save that succeeded; empty before one has. At once.
  std::string last_saved();
  /// Waits until the save is on the disk. Its path, or its failure, once; empty when there is none.
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
