#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/optim/update.h>
#include <stormo/train/optimizer/optimizer.h>

namespace stormo::train {

/// kExhausted: the Arena of `holder`, a local rank, has no room for so many bytes of `what`.
Status no_room_in_arena(comm::Communicator& world, int holder, std::int64_t bytes,
                        const std::string& what);

/// The gradients of the ranks of a host, which each of them reads where they lie.
class HostGradients {
 public:
  /// A collective. `host`: the ranks of this host, `world` itself where there is one host; both are
  /// borrowed. The parameters are those that HostSharedParameters::can_hold(). Throws Error.
  HostGradients(comm::Communicator& world, comm::Communicator& host,
                std::vector<NamedParameter> parameters);
  /// Not a collective. No other rank reads postings any more, unless the group has failed.
  ~HostGradients();
  HostGradients(const HostGradients&) = delete;

  /// Shows this rank's gradients to the host and waits for the others. Gradients in the Arena are
  /// read where they lie until release(); others are copied there. `weight` is what they count for:
  /// the gradient of a parameter becomes sum(weight_r * g_r) / sum(weight_r). kExhausted when a
  /// copy finds no room in the Arena.
  Status publish(double weight);
  /// After publish(): where the ranks left their gradients of this parameter; none of ranks whose
  /// weight is 0. Valid until release().
  std::span<const optim::GradientTerm> terms(std::size_t parameter) const {
    return terms_[parameter];
  }
  /// Nobody reads this rank's gradients any more. Not a collective.
  void release();

 private:
  Result<std::uint64_t> show(std::size_t index);
  void collect();

  comm::Communicator& world_;
  comm::Communicator& host_;
  std::vector<NamedParameter> parameters_;
  // A posting: the weight as a double, then by parameter an offset, or kNoGradient.
  std::vector<std::uint64_t*> postings_;  // by local rank, in their Arenas
  std::vector<std::byte*> rooms_;         // by parameter: Arena memory for small gradients
  std::vector<torch::Tensor> copies_;     // of large gradients that could not be shown
  std::vector<std::vector<optim::GradientTerm>> terms_;  // by parameter
};

}  // namespace stormo::train
