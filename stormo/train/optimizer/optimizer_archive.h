#pragma once

#include <map>
#include <string>

#include <torch/optim/optimizer.h>

#include <stormo/base/status.h>

namespace stormo::train {

/// The state of an optimizer of torch::optim as one tensor, "optimizer.archive": the bytes that its
/// own save() writes. They differ between ranks whose state is equal, since they hold addresses.
std::map<std::string, torch::Tensor> archive_of(const torch::optim::Optimizer& optimizer);
/// Loads the archive_of() an optimizer of the same kind with the same parameters in the same order.
/// kInvalidArgument says what does not match.
Status load_archive(torch::optim::Optimizer& optimizer,
                    const std::map<std::string, torch::Tensor>& state);

}  // namespace stormo::train
