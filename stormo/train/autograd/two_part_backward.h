#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/variable.h>

namespace stormo::train {

/// A backward in two parts: first the gradient of the input of a graph, for which others wait, then
/// those of the parameters. Together they compute what one backward does, and each of it once: the
/// second part begins with the gradients that the first one has found in front of parameters. For
/// each linear layer it keeps its input and the gradient of its output until then.
///
/// An operation of a user that computes the gradients of its input and of a parameter at once
/// (torch::autograd::Function) is computed twice, with the same result.
class TwoPartBackward {
 public:
  /// The first part. Adds to the gradient of `input`, a leaf from which `output` was computed; if
  /// it is undefined, nothing is computed yet. `gradient` is that of `output`; undefined for a
  /// scalar. Do not use the graph of `output` afterwards.
  TwoPartBackward(const torch::Tensor& output, torch::Tensor gradient, const torch::Tensor& input);

  /// The second part: adds to the gradients of all other leaves. Once.
  void parameters();

 private:
  torch::autograd::edge_list begin_;          // where the second part begins
  torch::autograd::variable_list gradients_;  // that go in there
};

}  // namespace stormo::train
