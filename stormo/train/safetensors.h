#pragma once

#include <map>
#include <string>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/train/checked_file.h>

namespace stormo::train {

/// Tensors by name, as they lie in one safetensors file.
using TensorMap = std::map<std::string, torch::Tensor>;

/// Writes a new file and waits until it is on the disk. Tensors may lie on any device and have any
/// strides; sparse ones and dtypes without a safetensors name are kInvalidArgument.
Result<FileDigest> write_safetensors(const std::string& path, const TensorMap& tensors,
                                     const std::map<std::string, std::string>& metadata = {});

/// Reads all tensors into memory of their own. The file is not trusted: kCorrupt names it and says
/// what is wrong, and nothing is allocated that the file does not hold.
Result<TensorMap> read_safetensors(const std::string& path);

}  // namespace stormo::train
