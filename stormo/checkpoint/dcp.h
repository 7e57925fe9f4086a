#pragma once

#include <string>
#include <vector>

#include <stormo/base/status.h>

// Folders of torch.distributed.checkpoint (DCP), which PyTorch's FSDP2, DTensor and DDP save.
namespace stormo::checkpoint {

struct ImportedDcp {
  std::string path;                   ///< of the checkpoint
  std::vector<std::string> left_out;  ///< names of what a checkpoint has no place for
};

/// Makes a checkpoint of step 0 in `directory` out of a DCP folder that any number of ranks have
/// written: of the model, and of the optimizer's state if it is there, as get_state_dict() or
/// Optimizer.state_dict() lay it out. Reads the folder into memory. kInvalidArgument and kCorrupt
/// name the file or the entry that is wrong; nothing is written then.
Result<ImportedDcp> import_dcp(const std::string& folder, const std::string& directory);

/// Writes the checkpoint at `path` as a DCP folder, which must not exist: the model as "model" and,
/// with `optimizer`, its optimizer's state as "optim", in the layout of get_state_dict(). Uses a
/// few MiB of memory. kInvalidArgument for the state of an optimizer that PyTorch does not have.
Status export_dcp(const std::string& path, const std::string& folder, bool optimizer);

}  // namespace stormo::checkpoint
