#include <stormo/protocol/server/shard_state.h>

#include <algorithm>
#include <string>

#include <stormo/protocol/server/policy.h>

namespace stormo::protocol {
namespace {

Status check_member(const ShardState& state, int worker) {
  if (state.worker(worker).active) return {};
  return Status(Code::kPeerLost, "worker " + std::to_string(worker) +
                                     " has left the server, or was taken for lost; it has to join "
                                     "again before it reads or pushes");
}

}  // namespace

void Staleness::add(std::uint64_t staleness) {
  ++count;
  sum += staleness;
  max = std::max(max, staleness);
  ++histogram[std::min<std::uint64_t>(staleness, kBuckets - 1)];
}

void Staleness::add(const Staleness& other) {
  count += other.count;
  sum += other.sum;
  max = std::max(max, other.max);
  for (std::size_t i = 0; i < kBuckets; ++i) histogram[i] += other.histogram[i];
}

int ShardState::active_workers() const {
  return static_cast<int>(std::ranges::count(workers, true, &WorkerState::active));
}

std::optional<std::uint64_t> ShardState::slowest_clock() const {
  std::optional<std::uint64_t> least;
  for (const WorkerState& w : workers) {
    if (w.active) least = std::min(least.value_or(w.pushes), w.pushes);
  }
  return least;
}

Staleness ShardState::staleness() const {
  Staleness all;
  for (const WorkerState& w : workers) all.add(w.staleness);
  return all;
}

Result<bool> may_read(const Policy& policy, const ShardState& state, int worker) {
  STORMO_RETURN_IF_ERROR(check_member(state, worker));
  return policy.may_read(state, worker);
}

void note_read(ShardState& state, int worker) {
  WorkerState& w = state.worker(worker);
  ++w.reads;
  w.version_read = state.version;
}

Result<PushDecision> decide(const Policy& policy, const ShardState& state, const Push& push) {
  const WorkerState& w = state.worker(push.worker);
  PushDecision decision;
  if (push.sequence < w.pushes) {
    decision.action = PushAction::kRepeated;
    return decision;
  }
  STORMO_RETURN_IF_ERROR(check_member(state, push.worker));
  if (push.sequence > w.pushes) {
    return invalid_argument("worker " + std::to_string(push.worker) + " sent push " +
                            std::to_string(push.sequence) + ", but push " +
                            std::to_string(w.pushes) + " was not received");
  }
  if (!policy.may_push(state, push.worker)) return decision;
  decision.staleness = state.version - w.version_read;
  if (!policy.accepts(state, push)) {
    decision.action = PushAction::kDrop;
    return decision;
  }
  if (policy.compensation() == Compensation::kInverseStaleness) {
    // an average scales the gradients alone: their weights stay what they are
    double& factor = policy.averages() ? decision.gradient_factor : decision.rate_factor;
    factor = 1 / static_cast<double>(std::max<std::uint64_t>(1, decision.staleness));
  } else if (policy.compensation() == Compensation::kLearningRateOverN) {
    decision.rate_factor = 1 / static_cast<double>(policy.at_once(state));
  }
  if (!policy.averages()) {
    decision.action = PushAction::kUpdate;
    return decision;
  }
  decision.action = PushAction::kAdd;
  ShardState after = state;
  note_push(after, push, decision);
  if (policy.complete(after)) decision.action = PushAction::kAddAndUpdate;
  return decision;
}

void note_push(ShardState& state, const Push& push, const PushDecision& decision) {
  WorkerState& w = state.worker(push.worker);
  const PushAction action = decision.action;
  if (action == PushAction::kWait || action == PushAction::kRepeated) return;
  ++w.pushes;
  if (action == PushAction::kDrop) {
    ++w.dropped;
    return;
  }
  w.version_used = state.version;
  w.staleness.add(decision.staleness);
  if (action != PushAction::kUpdate) {
    ++state.pending;
    state.pending_weight += push.weight;
    state.pending_loss += push.loss_sum;
    if (push.portion >= 0) {
      const auto portion = static_cast<std::size_t>(push.portion);
      state.counted[portion / 64] |= std::uint64_t{1} << portion % 64;
    }
  }
  if (action != PushAction::kAdd) note_update(state);
}

void note_exchange(ShardState& state, const Push& push, const PushDecision& decision) {
  note_push(state, push, decision);
  state.worker(push.worker).version_read = state.version;
}

void note_update(ShardState& state) {
  ++state.version;
  state.pending = 0;
  state.pending_weight = 0;
  state.pending_loss = 0;
  state.counted = {};
}

bool leave(const Policy& policy, ShardState& state, int worker) {
  state.worker(worker).active = false;
  return policy.averages() && state.pending > 0 && policy.complete(state);
}

void join(ShardState& state, int worker) {
  WorkerState& w = state.worker(worker);
  w.pushes = std::max(w.pushes, state.slowest_clock().value_or(0));
  w.reads = w.pushes;
  w.active = true;
}

}  // namespace stormo::protocol
