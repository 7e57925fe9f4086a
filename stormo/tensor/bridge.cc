#include <stormo/tensor/bridge.h>

#include <fmt/format.h>

#include <stormo/base/status.h>
#include <stormo/tensor/dtype.h>

namespace stormo::tensor {
namespace {

[[noreturn]] void refuse(std::string message) { throw Error(invalid_argument(std::move(message))); }

}  // namespace

comm::Buffer buffer_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    refuse("an undefined tensor cannot be exchanged between ranks; assign a value first");
  }
  if (!tensor.device().is_cpu()) {
    refuse(fmt::format("a tensor on {} cannot be exchanged between ranks; move it with .cpu()",
                       tensor.device().str()));
  }
  if (tensor.layout() != at::kStrided) {
    refuse("only dense tensors can be exchanged between ranks; convert with .to_dense()");
  }
  if (!tensor.is_contiguous()) {
    refuse(fmt::format("a tensor of shape {} with strides {} is not contiguous; use .contiguous()",
                       c10::str(tensor.sizes()), c10::str(tensor.strides())));
  }
  const DType dtype = dtype_of(tensor.scalar_type()).take_or_throw();
  return {tensor.mutable_data_ptr(), tensor.numel(), dtype};
}

}  // namespace stormo::tensor
