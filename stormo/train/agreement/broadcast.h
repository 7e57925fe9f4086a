#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/agreement/agreement.h>

namespace stormo::train {

/// Values of rank 0's tensors into everyone's, in place. All ranks hold the same names, shapes and
/// types: see check_same_tensors().
Status broadcast_values(comm::Communicator& world,
                        const std::map<std::string, torch::Tensor>& tensors);

/// Rank 0's map on every rank: names, shapes, types and values. Others' content is replaced.
Status broadcast_tensors(comm::Communicator& world, std::map<std::string, torch::Tensor>& tensors);

/// "model fc.weight" is "Float [10, 5] trained", for each tensor.
std::vector<Fact> tensor_facts(const std::map<std::string, torch::Tensor>& tensors);

/// kRefused on every rank, with a table of the differences, unless all ranks hold the same names,
/// shapes, strides and types, and train the same ones; see check_agreement().
Status check_same_tensors(comm::Communicator& world,
                          const std::map<std::string, torch::Tensor>& tensors);

}  // namespace stormo::train
