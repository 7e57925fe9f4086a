#pragma once

#include <torch/types.h>

namespace stormo::tensor {

/// Gives the storage of a tensor memory for all its elements, or takes it away: sizes, strides, and
/// what shares the storage stay. New memory has undefined values. Without memory reading is a
/// fault. The tensor is its whole storage.
void set_memory(const torch::Tensor& tensor, bool has);
/// Also true for a tensor without elements.
bool has_memory(const torch::Tensor& tensor);

/// A tensor of these sizes without memory.
torch::Tensor without_memory(torch::IntArrayRef sizes, torch::ScalarType type);
/// The tensor in another type; what has no memory has none then.
torch::Tensor converted(const torch::Tensor& tensor, torch::ScalarType type);

}  // namespace stormo::tensor
