#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/analysis/transfer/crossings.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// Bytes between one worker and the servers. Of a worker of several ranks the first one exchanges.
struct ServerExchange {
  std::int64_t pulled = 0;
  std::int64_t pushed = 0;
  bool operator==(const ServerExchange&) const = default;
};

/// What an action sends at one time: with servers, as messages between ranks, or as a collective.
/// Cost and simulation know no other.
using Transfer = std::variant<ServerExchange, Crossing, Collective>;

/// All that action number `action` of a verified plan sends, in order. A move between stages is one
/// Crossing over plan::kStageAxis, of 0 bytes where the size of the tensor is unknown; see
/// collectives_of(), crossings_of(), moved_bytes() and server_bytes() for the others. O(ranks).
std::vector<Transfer> transfers_of(const plan::StepPlan& plan, std::size_t action,
                                   const StepSizes& sizes);

}  // namespace stormo::analysis
