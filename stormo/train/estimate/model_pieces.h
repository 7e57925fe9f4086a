#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <stormo/model/chain.h>
#include <stormo/plan/model/model_shape.h>

namespace stormo::train {

/// Cuts a model into consecutive segments, as few pieces as one pass finds, whose parameters with
/// `numbers` numbers for each element fit into `memory` bytes; at least one segment in each.
std::vector<plan::Range> pieces_that_fit(const plan::ModelShape& model, int numbers,
                                         std::int64_t memory);

/// Consecutive segments of a chain as a chain of their own. It shares the segments.
class ChainPiece final : public model::Chain {
 public:
  ChainPiece(const model::Chain& whole, plan::Range segments);
};

/// A parameter that segments read, and that other segments own.
struct BorrowedParameter {
  torch::Tensor tensor;
  std::optional<plan::Split> split;  ///< where ranks have slices of it
};
/// What `piece`, segments of `whole`, borrows from others.
std::vector<BorrowedParameter> borrowed_by(const ChainPiece& piece, const model::Chain& whole);

/// While it lives, parameters that have no memory have some, with small random values: enough to
/// measure what computing with them takes.
class PassingValues {
 public:
  explicit PassingValues(const std::vector<torch::Tensor>& parameters);
  ~PassingValues();
  PassingValues(const PassingValues&) = delete;
  PassingValues& operator=(const PassingValues&) = delete;

 private:
  std::vector<torch::Tensor> given_;
};

}  // namespace stormo::train
