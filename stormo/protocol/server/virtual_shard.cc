#include <stormo/protocol/server/virtual_shard.h>

namespace stormo::protocol {

Result<Taken> transition(const Policy& policy, bool exchanges, ShardState& state,
                         const VirtualEvent& event) {
  const int w = event.worker;
  if (event.kind == EventKind::kLeaves) {
    const bool updates = leave(policy, state, w);
    if (updates) note_update(state);
    return Taken{.updates = updates};
  }
  if (event.reads) {
    if (state.worker(w).reads > static_cast<std::uint64_t>(event.sequence)) {
      return Taken{.repeated = true};
    }
    STORMO_ASSIGN_OR_RETURN(const bool may, may_read(policy, state, w));
    if (may) note_read(state, w);
    return Taken{.waits = !may};
  }
  const Push push = push_of(event);
  STORMO_ASSIGN_OR_RETURN(const PushDecision decision, decide(policy, state, push));
  const Taken taken{.waits = decision.action == PushAction::kWait,
                    .repeated = decision.action == PushAction::kRepeated,
                    .decision = decision};
  if (taken.waits || taken.repeated) return taken;
  if (exchanges) {
    note_exchange(state, push, decision);
  } else {
    note_push(state, push, decision);
  }
  STORMO_RETURN_IF_ERROR(policy.invariant(state));
  return taken;
}

Push push_of(const VirtualEvent& event) {
  return {.worker = event.worker, .sequence = static_cast<std::uint64_t>(event.sequence)};
}

}  // namespace stormo::protocol
