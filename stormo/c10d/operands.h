#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <stormo/comm/buffer.h>
#include <stormo/comm/request.h>
#include <stormo/transport/memory/arena.h>

// What PyTorch calls a tensor, as what a Communicator calls a Buffer. Wrong arguments throw
// c10::ValueError, which is Python's ValueError.
namespace stormo::c10d {

/// Throws unless the tensor is dense and on the CPU.
void check_dense(const at::Tensor& tensor);

/// The elements of `tensor` in row-major order: the tensor itself, or a copy where its own memory
/// has another order. Then assign() brings a result back.
at::Tensor in_order(const at::Tensor& tensor);
/// The same for a tensor whose values are not read.
at::Tensor in_order_unread(const at::Tensor& tensor);
/// Throws if results cannot be written there: several elements are one place in memory.
void check_result(const at::Tensor& tensor);

/// `in`, or a copy of it if it overlaps with `out`. They may share memory where the smaller one is
/// a part of the other, which has `before` elements before it; negative: never.
at::Tensor apart(const at::Tensor& in, const at::Tensor& out, std::int64_t before = -1);

/// Memory for elements that peers read in place: in `arena` unless it is small or the arena is
/// exhausted.
at::Tensor new_memory(transport::Arena& arena, at::IntArrayRef sizes, at::TensorOptions options);

/// tensor = values, which have as many elements of the same type in row-major order. Any thread:
/// leaves of autograd, and tensors of an inference mode, are as good as others.
void assign(const at::Tensor& tensor, const at::Tensor& values);

/// For operations that copy: elements of a type that Stormo has, else bytes.
comm::Buffer copied(const at::Tensor& contiguous);

/// How a reduction of PyTorch's is done on elements of a type.
struct Arithmetic {
  comm::ReduceOp op = comm::ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  int parts = 1;  ///< of an element: 2 for complex numbers
};
Arithmetic arithmetic_of(::c10d::ReduceOp::RedOpType op, c10::ScalarType type);
comm::Buffer reduced(const at::Tensor& contiguous, const Arithmetic& how);

/// Whether ranks multiply with a factor before they add up: PREMUL_SUM.
bool multiplies_first(const ::c10d::ReduceOp& op);
/// tensor * factor of `op`, in row-major order and in new memory.
at::Tensor multiplied(const at::Tensor& tensor, const ::c10d::ReduceOp& op);

/// The tensors as one piece of memory, where they lie in it one behind the other without gaps; else
/// an undefined tensor.
at::Tensor adjacent(std::span<const at::Tensor> tensors);
/// Elements of each.
std::vector<std::int64_t> counts_of(std::span<const at::Tensor> tensors);

}  // namespace stormo::c10d
