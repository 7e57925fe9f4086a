#pragma once

#include <torch/nn/module.h>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::train {

/// kMismatch on every rank, naming the ranks that differ from rank 0, unless names, shapes, types
/// and bytes of all parameters and buffers are equal on all ranks.
Status check_replicas(comm::Communicator& world, const torch::nn::Module& module);

}  // namespace stormo::train
