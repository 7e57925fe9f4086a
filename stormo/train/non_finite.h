#pragma once

#include <string>

#include <stormo/data/dataset.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// Where the numbers of a forward pass of `batch` stop being finite: "the input", "parameter
/// 'block0.qkv'", "the output of segment 'block2'", "the loss". Repeats the forward pass, segment
/// by segment where the module is a model::Chain.
std::string first_non_finite(const Task& task, const data::Batch& batch);

}  // namespace stormo::train
