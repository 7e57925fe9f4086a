#include <torch/nn/module.h>

#include <cstdint>
#include <utility>

#include <stormo/tensor/memory.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {
namespace {

using checkpoint::Hasher;

void add_number(Hasher& hasher, std::uint64_t value) { hasher.add(&value, sizeof(value)); }

/// The length comes first, so that "ab","c" and "a","bc" differ.
void add_text(Hasher& hasher, std::string_view text) {
  add_number(hasher, text.size());
  hasher.add(text.data(), text.size());
}

}  // namespace

void WeightsHash::add(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor::has_memory(tensor)) {
    throw Error(invalid_argument("'" + name +
                                 "' has no values here: ranks have parts of it; hash it inside of "
                                 "FullyShardedDataParallel::gathered()"));
  }
  const torch::Tensor t = tensor.detach().to(torch::kCPU).contiguous();
  add_text(hasher_, name);
  add_text(hasher_, c10::toString(t.scalar_type()));
  add_number(hasher_, static_cast<std::uint64_t>(t.dim()));
  for (const std::int64_t dim : t.sizes()) add_number(hasher_, static_cast<std::uint64_t>(dim));
  hasher_.add(t.const_data_ptr(), static_cast<std::size_t>(t.nbytes()));
}

std::string WeightsHash::hex() const { return checkpoint::to_hex(hasher_.digest()); }

std::string weights_hash(const TensorMap& tensors) {
  WeightsHash hash;
  for (const auto& [name, tensor] : tensors) hash.add(name, tensor);
  return hash.hex();
}

VisitTensors visit_all(TensorMap tensors) {
  return [tensors = std::move(tensors)](const auto& visit) {
    for (const auto& [name, tensor] : tensors) visit(name, tensor);
  };
}

TensorMap named_state(const torch::nn::Module& module) {
  TensorMap state;
  for (const auto& item : module.named_parameters()) state.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) state.emplace(item.key(), item.value());
  return state;
}

}  // namespace stormo::train
