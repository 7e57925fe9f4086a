#pragma once

#include <map>
#include <optional>
#include <string>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/checkpoint/checked_file.h>

namespace stormo::train {

/// Tensors by name, as they lie in one safetensors file.
using TensorMap = std::map<std::string, torch::Tensor>;

/// "F32", ... as safetensors files call it; null for types they do not have.
const char* safetensors_name(torch::ScalarType type);
std::optional<torch::ScalarType> safetensors_type(const std::string& name);

/// The tensor's values in memory of the host, side by side in C order: the tensor itself where it
/// lies so. kInvalidArgument for sparse ones and types without a safetensors name.
Result<torch::Tensor> plain_values(const std::string& name, const torch::Tensor& tensor);

/// Writes a new file and waits until it is on the disk. Tensors may lie on any device and have any
/// strides; sparse ones and dtypes without a safetensors name are kInvalidArgument.
Result<checkpoint::FileDigest> write_safetensors(
    const std::string& path, const TensorMap& tensors,
    const std::map<std::string, std::string>& metadata = {});

/// Reads all tensors into memory of their own. The file is not trusted: kCorrupt names it and says
/// what is wrong, and nothing is allocated that the file does not hold.
Result<TensorMap> read_safetensors(const std::string& path);

}  // namespace stormo::train
