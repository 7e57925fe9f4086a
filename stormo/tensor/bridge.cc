#include <stormo/tensor/bridge.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <stormo/base/status.h>
#include <stormo/tensor/dtype.h>

namespace stormo::tensor {
namespace {

[[noreturn]] void refuse(std::string message) { throw Error(invalid_argument(std::move(message))); }

comm::Buffer buffer_on(c10::Device device, void* data, std::int64_t count, DType dtype) {
  if (device.is_cpu()) return {data, count, dtype};
  using Kind = comm::Device::Kind;
  return {data, count, dtype,
          comm::Device{device.is_cuda() ? Kind::kCuda : Kind::kOther, device.index()},
          c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle()};
}

}  // namespace

comm::Buffer buffer_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    refuse("an undefined tensor cannot be exchanged between ranks; assign a value first");
  }
  if (tensor.is_meta()) {
    refuse("a tensor on meta has no values to exchange between ranks; make it on a device");
  }
  if (tensor.layout() != at::kStrided) {
    refuse("only dense tensors can be exchanged between ranks; convert with .to_dense()");
  }
  if (!tensor.is_contiguous()) {
    refuse(fmt::format("a tensor of shape {} with strides {} is not contiguous; use .contiguous()",
                       c10::str(tensor.sizes()), c10::str(tensor.strides())));
  }
  const DType dtype = dtype_of(tensor.scalar_type()).take_or_throw();
  return buffer_on(tensor.device(), tensor.mutable_data_ptr(), tensor.numel(), dtype);
}

comm::Buffer bytes_of(const at::Tensor& tensor) {
  return buffer_on(tensor.device(), tensor.mutable_data_ptr(),
                   static_cast<std::int64_t>(tensor.nbytes()), DType::kUInt8);
}

}  // namespace stormo::tensor
