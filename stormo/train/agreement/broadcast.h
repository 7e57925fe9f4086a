#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/comm/agreement/agreement.h>
#include <stormo/comm/communicator.h>

namespace stormo::train {

/// A collective: copies the values of the tensors of `root` to all ranks, in place. Names, shapes
/// and types must be equal on all ranks: see check_same_tensors().
Status broadcast_values(comm::Communicator& world,
                        const std::map<std::string, torch::Tensor>& tensors, Rank root = 0);

/// A collective: replaces the map of every rank by that of rank 0: names, shapes, types and values.
Status broadcast_tensors(comm::Communicator& world, std::map<std::string, torch::Tensor>& tensors);

/// One fact for each tensor: the field "model fc.weight" with the value "Float [10, 5] trained".
std::vector<comm::Fact> tensor_facts(const std::map<std::string, torch::Tensor>& tensors);

/// A collective: OK if all ranks have the same names, shapes, strides and types, and train the same
/// tensors; else kRefused on every rank with a table of the differences. See check_agreement().
Status check_same_tensors(comm::Communicator& world,
                          const std::map<std::string, torch::Tensor>& tensors);

}  // namespace stormo::train
