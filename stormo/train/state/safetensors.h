#pragma once

#include <map>
#include <optional>
#include <string>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/checkpoint/file/checked_file.h>

namespace stormo::train {

/// Tensors by name, as in one safetensors file.
using TensorMap = std::map<std::string, torch::Tensor>;

/// The name of the type in safetensors files ("F32", ...); null for types that they do not have.
const char* safetensors_name(torch::ScalarType type);
std::optional<torch::ScalarType> safetensors_type(const std::string& name);

/// The tensor's values in contiguous host memory in C order; the tensor itself if it is already so.
/// kInvalidArgument for sparse tensors and types without a safetensors name.
Result<torch::Tensor> plain_values(const std::string& name, const torch::Tensor& tensor);

/// Reads all tensors into new memory. The file is not trusted: kCorrupt names it and says what is
/// wrong, and no more memory is allocated than the file has bytes.
Result<TensorMap> read_safetensors(const std::string& path);

}  // namespace stormo::train
