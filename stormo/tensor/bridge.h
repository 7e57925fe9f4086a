#pragma once

#include <ATen/core/Tensor.h>

#include <stormo/comm/buffer.h>

namespace stormo::tensor {

/// The elements of `tensor` as a Communicator takes them: borrowed, so the tensor must outlive the
/// operation. Views are taken where they lie. Throws Error(kInvalidArgument) unless the tensor is
/// defined, strided, contiguous, on the CPU and of a type that dtype_of() knows.
comm::Buffer buffer_of(const at::Tensor& tensor);

}  // namespace stormo::tensor
