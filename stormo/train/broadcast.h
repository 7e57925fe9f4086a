#pragma once

#include <map>
#include <string>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::train {

/// Values of rank 0's tensors into everyone's, in place. All ranks hold the same names, shapes and
/// types: see check_same_tensors().
Status broadcast_values(comm::Communicator& world,
                        const std::map<std::string, torch::Tensor>& tensors);

/// Rank 0's map on every rank: names, shapes, types and values. Others' content is replaced.
Status broadcast_tensors(comm::Communicator& world, std::map<std::string, torch::Tensor>& tensors);

/// kInvalidArgument on every rank, naming the first difference between rank 0 and the first rank
/// that differs from it, unless all ranks hold the same names, shapes, strides and types.
Status check_same_tensors(comm::Communicator& world,
                          const std::map<std::string, torch::Tensor>& tensors);

}  // namespace stormo::train
