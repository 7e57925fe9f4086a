#include <stormo/tensor/memory.h>

#include <c10/core/DeviceGuard.h>
#include <torch/utils.h>

namespace stormo::tensor {

void set_memory(const torch::Tensor& tensor, bool has) {
  const std::size_t bytes = has ? tensor.nbytes() : 0;
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->nbytes() == bytes) return;
  const c10::DeviceGuard guard(tensor.device());  // whose memory the allocator gives
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

bool has_memory(const torch::Tensor& tensor) {
  return tensor.storage().nbytes() > 0 || tensor.numel() == 0;
}

torch::Tensor without_memory(torch::IntArrayRef sizes, torch::ScalarType type) {
  const torch::Tensor out = torch::empty({0}, type);
  out.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return out;
}

torch::Tensor converted(const torch::Tensor& tensor, torch::ScalarType type) {
  return has_memory(tensor) ? tensor.to(type) : without_memory(tensor.sizes(), type);
}

}  // namespace stormo::tensor
