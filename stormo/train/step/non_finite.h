#pragma once

#include <string>
#include <vector>

#include <stormo/data/dataset.h>
#include <stormo/train/state/tensor_piece.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// Where the numbers of a forward pass of `batch` stop being finite: "the input", "parameter
/// 'block0.qkv'", "the output of segment 'block2'", "the loss". Repeats the forward pass, segment
/// by segment where the module is a model::Chain.
std::string first_non_finite(const Task& task, const data::Batch& batch);

/// The same for a rank that holds `parts` of a model and cannot repeat the pass alone; `output` is
/// what the pass gave. What other ranks hold is not looked at.
std::string first_non_finite(const std::vector<TensorPiece>& parts, const data::Batch& batch,
                             const torch::Tensor& output);

}  // namespace stormo::train
