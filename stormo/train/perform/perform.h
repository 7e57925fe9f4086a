#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/base/status.h>
#include <stormo/comm/codec/encoded_sum.h>
#include <stormo/comm/communicator.h>

// The requests of a step. What is sent stands in the plan's transfers, of which its cost is
// computed; here come only the addresses. tools/request_lint checks that a step makes no others.
namespace stormo::train {

/// Where the elements of a collective lie on this rank. Borrowed until it is complete.
struct Operands {
  std::span<const comm::Buffer> in, out;
  comm::EncodedSum* encoding = nullptr;  ///< of a codec that encodes
};

/// Reads and writes the same elements.
inline Operands in_place(std::span<const comm::Buffer> buffers) {
  return {.in = buffers, .out = buffers};
}

/// What the transfer says, as a request without addresses and weights, for steps that make it again
/// and again. Not of neighbours. Borrows the name of the algorithm.
comm::Request request_of(const analysis::Collective& what);

/// Does what the transfer says, which is not of neighbours. A collective of `ranks`; blocks.
Status perform_transfer(comm::Communicator& ranks, const analysis::Collective& what,
                        const Operands& where);
/// Starts it. `what` must outlive the call only.
comm::Work start_transfer(comm::Communicator& ranks, const analysis::Collective& what,
                          const Operands& where);

/// What neighbours send each other. The buffers are borrowed until the messages are complete.
struct NeighbourOperands {
  comm::Buffer own;
  std::span<const Rank> to;  ///< who gets it
  /// What comes from each of `from`.
  std::span<const comm::Buffer> theirs;
  std::span<const Rank> from;
};
/// Starts the messages of a transfer of neighbours. Those of one `tag` keep their order between two
/// ranks. No collective.
std::vector<comm::Work> start_messages(comm::Communicator& ranks, const analysis::Collective& what,
                                       std::uint32_t tag, const NeighbourOperands& where);

/// Numbers beside tensors, which ranks add up, or of which they need the largest. Collectives;
/// they block. `algorithm`: a builder; empty: what the communicator chooses.
Status add_up(comm::Communicator& ranks, std::span<double> numbers,
              std::string_view algorithm = {});
Status find_largest(comm::Communicator& ranks, comm::Buffer numbers);

/// kBadPlan unless the transfer is of so many elements of this type. When a plan is set.
Status check_elements(const analysis::Collective& what, std::int64_t elements, DType dtype);

}  // namespace stormo::train
