#pragma once

#include <string>

#include <stormo/base/status.h>

namespace stormo::checkpoint {

/// Writes the checkpoint at `path` as one safetensors file with whole tensors under their own
/// names, as Python's safetensors package reads it: the model's, or with `optimizer` the
/// optimizer's state too. `file` must not exist. Uses a few MiB of memory.
Status export_checkpoint(const std::string& path, const std::string& file, bool optimizer);

/// Makes a checkpoint of step 0 in `directory` out of a safetensors file with the tensors of a
/// model under the names of torch.nn.Module.state_dict(); the prefix "module." that Python's
/// DistributedDataParallel adds to all of them is removed. Returns its path. Reads the whole file
/// into memory.
Result<std::string> import_checkpoint(const std::string& file, const std::string& directory);

/// OK when checkpoints can be imported into `directory`: it has none yet.
Status check_new_folder(const std::string& directory);

}  // namespace stormo::checkpoint
