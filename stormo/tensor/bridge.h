#pragma once

#include <ATen/core/Tensor.h>

#include <stormo/comm/buffer.h>

namespace stormo::tensor {

/// The elements of `tensor` as a Buffer for a Communicator. The memory is borrowed, so the tensor
/// must outlive the operation; nothing is copied, also for views. Throws Error(kInvalidArgument)
/// unless the tensor is defined, strided, contiguous, has values and is of a type that dtype_of()
/// supports.
///
/// A tensor on another device than the CPU gives a Buffer of that device, ordered by its current
/// stream. Engines that take host memory only refuse it: see HostStaging.
comm::Buffer buffer_of(const at::Tensor& tensor);
/// The same for the bytes of a contiguous tensor of any type, for operations that do not compute.
comm::Buffer bytes_of(const at::Tensor& tensor);

}  // namespace stormo::tensor
