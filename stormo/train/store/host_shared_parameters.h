#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/optim/update.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/store/host_gradients.h>

namespace stormo::train {

/// One copy of the parameters for all ranks of a host, each of which owns a slice of it.
///
/// The parameters lie in the Arena of the host's first rank, and every rank's module looks at them
/// there. A step then needs neither a reduction nor a copy: after backward every rank publishes
/// where its gradients lie, the owner of a slice sums them in the order of ranks while it updates
/// the slice in place, and everyone meets before the next forward. The sum has the bits of an
/// all_reduce with kWeightedAverage. Memory per host: one copy of the parameters and, with an
/// Optimizer over owned(), one of its state, whatever the number of ranks.
///
/// Only slice owners may write parameters between publish() and release(), and nobody else at any
/// time: a user's own optimizer, which updates all it sees on every rank, needs replicated ones.
/// Buffers stay private. Between hosts publish() is not used: gradients are averaged first (then
/// every rank of a host has the same), and owners update from their own.
class HostSharedParameters {
 public:
  /// Whether the ranks of this host share memory, as they do with Stormo's own engine.
  static bool possible(comm::Communicator& world);
  /// Whether the tensor is contiguous, on the CPU, float32 or float64.
  static bool can_hold(const NamedParameter& parameter);

  /// A collective. `host`: the ranks of this host, `world` itself where there is one host; both are
  /// borrowed. The values are those of each host's first rank; they must be equal on all hosts.
  /// Throws Error unless possible() and all can be held.
  HostSharedParameters(comm::Communicator& world, comm::Communicator& host,
                       std::vector<NamedParameter> parameters);
  /// Gives this rank private copies again; waits for the host's other ranks, unless the group has
  /// failed.
  ~HostSharedParameters();
  HostSharedParameters(const HostSharedParameters&) = delete;

  /// The ranks of this host.
  comm::Communicator& host() { return host_; }
  /// By parameter: which elements this rank updates; may be empty.
  const std::vector<OwnedRange>& owned() const { return owned_; }

  /// As HostGradients::publish().
  Status publish(double weight);
  /// After publish(), for FusedOptimizer::step(): the gradients of what this rank owns, where the
  /// ranks left them; none for parameters of which no rank has one. Valid until release().
  std::span<const RangeGradient> gradients() const { return gradients_; }
  /// Waits until every owner on this host has updated its slice. Gradients may go then.
  Status release();

 private:
  void share_values();
  void divide();

  comm::Communicator& world_;
  comm::Communicator& host_;
  std::vector<NamedParameter> parameters_;
  struct Block {
    torch::ScalarType type;
    std::int64_t count = 0;    ///< elements, with the gaps that keep parameters aligned
    std::uint64_t offset = 0;  ///< in the Arena of the host's first rank
  };
  std::vector<Block> blocks_;           // one for each element type
  std::vector<std::size_t> block_of_;   // by parameter
  std::vector<std::int64_t> position_;  // by parameter, in its block, in elements
  std::vector<OwnedRange> owned_;

  std::optional<HostGradients> posted_;
  std::vector<std::vector<optim::GradientTerm>> sources_;  // by parameter
  std::vector<RangeGradient> gradients_;
};

}  // namespace stormo::train
