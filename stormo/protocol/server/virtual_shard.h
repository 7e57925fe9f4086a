#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/protocol/server/shard_state.h>

namespace stormo::protocol {

// What servers in virtual time do with requests, see virtual_servers.h.

enum class EventKind : std::uint8_t {
  kArrives,    // a request at the server that holds the shard
  kCopied,     // what was done to a shard, at the server that has its copy
  kConfirmed,  // that it was done to the copy, at the first server
  kReturns,    // the answer
  kAgain,      // the worker sends the request again, if there is no answer
  kComputed,
  kLeaves,
  kCrash,
  kServerCrash
};

struct VirtualEvent {
  Duration at{};
  std::int64_t number = 0;  // events at the same time happen in the order of their making
  EventKind kind = EventKind::kArrives;
  bool reads = false;  // a request: else it pushes
  int worker = 0;
  int server = 0;             // or shard
  int holder = 0;             // of the shard, when the request was sent
  std::int64_t request = 0;   // number of the worker's request
  std::int64_t sequence = 0;  // of the worker's read or push
  bool operator>(const VirtualEvent& other) const {
    return at != other.at ? at > other.at : number > other.number;
  }
};

/// What a server makes of a request.
struct Taken {
  bool waits = false;
  bool repeated = false;       // it was executed before
  PushDecision decision = {};  // of a push
  bool updates = false;        // of a leaving: the pending gradients make up an update
  bool operator==(const Taken&) const = default;
};

/// A shard at the server that holds it, and at the one that has its copy.
struct VirtualShard {
  struct Done {
    VirtualEvent event;
    Taken taken;
  };
  int holder = 0;
  std::optional<ShardState> copy;
  std::deque<Done> unconfirmed;       // what the copy does not know yet
  std::vector<VirtualEvent> blocked;  // requests that wait
};

/// A server executes a request, or that a worker leaves: as the first one, or as its copy.
/// `exchanges`: see VirtualCluster. kCorrupt when an invariant of the policy is broken.
Result<Taken> transition(const Policy& policy, bool exchanges, ShardState& state,
                         const VirtualEvent& event);
/// Of an event that pushes.
Push push_of(const VirtualEvent& event);

}  // namespace stormo::protocol
