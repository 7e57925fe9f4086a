#pragma once

#include <vector>

#include <stormo/plan/model/model_shape.h>
#include <stormo/plan/project.h>
#include <stormo/train/state/tensor_piece.h>

namespace stormo::train {

/// What a piece of a slice of a tensor is of the whole tensor. `piece` has a range of the elements
/// of the slice, in C order; `slice` are the sizes of the slice, which is what `part` has of a
/// tensor of sizes `whole`. The outcome has boxes of the whole, and shares the values.
std::vector<TensorPiece> pieces_of_whole(const TensorPiece& piece,
                                         const std::vector<std::int64_t>& slice,
                                         const std::vector<std::int64_t>& whole,
                                         const plan::Split& split, const plan::Part& part);

}  // namespace stormo::train
