#pragma once

#include <stormo/protocol/server/shard_state.h>

namespace stormo::protocol {

/// As note_push(), of an exchange of elastic averaging. The worker knows what it has made, so the
/// next one is stale by what others do from now on.
inline void note_exchange(ShardState& state, const Push& push, const PushDecision& decision) {
  note_push(state, push, decision);
  state.worker(push.worker).version_read = state.version;
}

}  // namespace stormo::protocol
