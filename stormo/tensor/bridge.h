#pragma once

#include <ATen/core/Tensor.h>

#include <stormo/comm/buffer.h>

namespace stormo::tensor {

/// The elements of `tensor` as a Buffer for a Communicator. The memory is borrowed, so the tensor
/// must outlive the operation; nothing is copied, also for views. Throws Error(kInvalidArgument)
/// unless the tensor is defined, strided, contiguous, on the CPU and of a type that dtype_of()
/// supports.
comm::Buffer buffer_of(const at::Tensor& tensor);

}  // namespace stormo::tensor
