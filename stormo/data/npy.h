#pragma once

#include <string>

#include <torch/types.h>

#include <stormo/base/status.h>

namespace stormo::data {

/// The array of a NumPy .npy file, mapped, not read: the tensor lies in the file (MappedFile) and
/// is for reading only. Errors as of MappedFile::open and parse_npy_header, naming the file.
Result<torch::Tensor> load_npy(const std::string& path);

}  // namespace stormo::data
