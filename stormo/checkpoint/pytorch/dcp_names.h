#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/checkpoint/pytorch/dcp_metadata.h>

namespace stormo::checkpoint {

/// A tensor of the optimizer's state, and its name in a checkpoint: optimizer.<slot>.<parameter>.
struct OptimizerTensor {
  std::string name;
  const DcpEntry* entry = nullptr;
  bool counts_steps = false;  ///< the number of updates of a parameter
};

/// Which entries of a DCP folder are what in a checkpoint.
struct DcpNames {
  std::map<std::string, const DcpEntry*> model;
  std::vector<OptimizerTensor> optimizer;
  std::vector<std::string> left_out;  ///< what a checkpoint has no place for
};

/// Whether a tensor of a model is a running statistic of a normalisation layer, which no optimizer
/// has, by its name.
bool is_running_statistic(std::string_view name);

/// Finds the model and its optimizer's state in what a folder holds; the names point into it.
/// `read_object` gives the pickle of an entry that is no tensor. The model is what was saved under
/// "model", or all there is; the prefix "module." of DistributedDataParallel goes. Parameters that
/// the optimizer's state only numbers get their names from its param_groups, or by their order.
/// kInvalidArgument names what cannot be told.
Result<DcpNames> names_of_dcp(
    const std::vector<DcpEntry>& entries,
    const std::function<Result<std::string>(const DcpEntry&)>& read_object);

}  // namespace stormo::checkpoint
