// Elastic averaging on a shard: the shard's parameters are the centre to which the workers' own
// values are drawn, and which they draw.
//
// Idea: the worker that exchanges writes the centre's next version into a copy that nobody uses, as
// a push does, and its own new values beside it. Only when the version is current do they take the
// place of the old ones. So both change, or none does: what the centre gains, the worker loses.
// Cost: one pass over the shard, and a copy of the worker's values. Paper: S. Zhang, A.
// Choromanska, Y. LeCun, "Deep learning with elastic averaging SGD", NIPS 2015, algorithm 1.
#include <cstring>

#include <stormo/server/shard/shared_shard.h>

namespace stormo::server {

using protocol::PushAction;
using protocol::PushDecision;

Result<Shard::Pushed> SharedShard::elastic_average(std::span<void* const> own, double alpha,
                                                   std::uint64_t sequence, Deadline by) {
  STORMO_RETURN_IF_ERROR(status());
  const protocol::Push push{.worker = worker_, .sequence = sequence};
  const protocol::Policy& policy = *options_.policy;
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(PushDecision decision, protocol::decide(policy, memory_.state(), push));
    if (decision.action == PushAction::kRepeated) return Pushed{decision};
    if (decision.action != PushAction::kUpdate) {
      return invalid_argument("an exchange waits for nobody; give the shard policy 'async'");
    }
    STORMO_ASSIGN_OR_RETURN(Lease lease, acquire(by, wait_.patience));
    const Result<PushDecision> under_lease = protocol::decide(policy, lease.state, push);
    if (!under_lease.ok()) {
      memory_.release(worker_, lease);  // it was taken for lost meanwhile
      return under_lease.status();
    }
    decision = *under_lease;
    move_all(lease, own, alpha);
    protocol::note_exchange(lease.state, push, decision);
    if (!memory_.commit(worker_, lease)) continue;
    const std::byte* moved = moved_.data();
    for (std::size_t i = 0; i < own.size(); ++i) {
      const std::size_t bytes = pieces()[i].bytes();
      std::memcpy(own[i], moved, bytes);
      moved += bytes;
    }
    ShardMemory::Cell& cell = memory_.cell(worker_);
    cell.version_read.store(lease.state.worker(worker_).version_read, std::memory_order_release);
    return Pushed{decision, lease.to.count};
  }
}

void SharedShard::move_all(Lease& lease, std::span<void* const> own, double alpha) {
  memory_.changes().note_all(lease.state.version + 1);
  memory_.start_writing(lease.free);
  lease.to.weights = lease.free.weights;
  std::size_t bytes = 0;
  for (const ShardPiece& piece : pieces()) bytes += piece.bytes();
  moved_.resize(bytes);
  std::byte* moved = moved_.data();
  for (std::size_t i = 0; i < own.size(); ++i) {
    exchange_piece(pieces()[i], alpha, static_cast<const std::byte*>(own[i]),
                   memory_.weights(lease.from.weights, i), memory_.weights(lease.to.weights, i),
                   moved, progress());
    moved += pieces()[i].bytes();
  }
}

}  // namespace stormo::server
