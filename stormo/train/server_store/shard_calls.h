#pragma once

#include <cstdint>
#include <memory>

#include <stormo/comm/communicator.h>
#include <stormo/comm/operation/operation.h>
#include <stormo/comm/watch/activity.h>
#include <stormo/server/worker/worker_session.h>

namespace stormo::train {

/// Tells those who look for stalls when this worker is in a call at its shards, where it may wait
/// for other workers: ranks of one group by the records of operations (comm/watch), the servers of
/// a session by its pulse. For one thread.
class ShardCalls {
 public:
  /// `session`: null where ranks share memory. Both borrowed.
  ShardCalls(comm::Communicator& world, server::WorkerSession* session, int worker)
      : world_(world), session_(session), worker_(worker) {}
  /// Calls are counted anew. Where ranks share memory, all workers come here before the next call
  /// of any of them, and then make the same calls.
  void begin_round();

  /// A call, from its begin to its end.
  class Call {
   public:
    Call(ShardCalls& calls, comm::Operation::AtShards what) : calls_(calls) { calls_.begin(what); }
    ~Call() { calls_.end(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    ShardCalls& calls_;
  };

 private:
  void begin(comm::Operation::AtShards what);
  void end();

  comm::Communicator& world_;
  server::WorkerSession* session_;
  int worker_;
  int depth_ = 0;  // a push may finish a pull
  std::uint64_t count_ = 0;
  std::shared_ptr<comm::Activity> activity_;  // null: nobody looks at it
};

}  // namespace stormo::train
