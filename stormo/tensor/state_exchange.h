#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include <stormo/tensor/split.h>

// States of a graph of segments of which each rank computes a part (plan/model/segment_graph.h):
// what ranks send each other of them, in forward and in backward.
namespace stormo::tensor {

/// What one rank sends and receives in one exchange.
struct StateExchange {
  struct Message {
    int rank = 0;  ///< to which it goes, or from which it comes
    std::vector<std::int64_t> sizes;
    int state = 0;  ///< of what is sent: its number in the list given to exchange_states()
  };
  /// Two ranks have the messages between them in the same order.
  std::vector<Message> sent, received;
};

/// The exchanges of a forward pass, in order. It makes backward do them in the reverse order on
/// every rank, whatever the rank computes between them.
class StateExchanges {
 public:
  /// `x`: the input of the graph. `others`: what this rank has of the parameters of segments of
  /// other ranks, which is without elements. In backward all of them get gradients of zeros where
  /// they need any. `trained`: on all ranks, whether a parameter of the graph or `x` needs one.
  /// `type`: of all states that cross. Borrows `ranks`.
  StateExchanges(const TensorParallelGroup& ranks, const torch::Tensor& x,
                 const std::vector<torch::Tensor>& others, bool trained, torch::ScalarType type);

  /// A collective, also in backward: each state goes once to each rank that reads it; in backward
  /// its gradient comes back from there, and those of one state are added up. Returns what this
  /// rank receives, in order; zeros if it is alone. Copies what is sent. Throws Error.
  std::vector<torch::Tensor> move_states(const std::vector<torch::Tensor>& states,
                                         const StateExchange& what);
  /// The last one: a collective in forward. Every rank gets the output of the graph, of `sizes`,
  /// from `owner`, which gives it. In backward its gradient is the same on all ranks, so nothing is
  /// sent. Throws Error.
  torch::Tensor give_output(const torch::Tensor& output, const std::vector<std::int64_t>& sizes,
                            int owner);

 private:
  const TensorParallelGroup& ranks_;
  /// A number that is an input and an output of each exchange.
  torch::Tensor token_;
};

}  // namespace stormo::tensor
