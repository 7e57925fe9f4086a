#include <torch/torch.h>

#include <cstdint>

#include <stormo/checkpoint/checked_file.h>
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

std::string weights_hash(const std::map<std::string, torch::Tensor>& tensors) {
  Hasher hasher;
  for (const auto& [name, tensor] : tensors) {
    const torch::Tensor t = tensor.detach().to(torch::kCPU).contiguous();
    add_text(hasher, name);
    add_text(hasher, c10::toString(t.scalar_type()));
    add_number(hasher, static_cast<std::uint64_t>(t.dim()));
    for (const std::int64_t dim : t.sizes()) add_number(hasher, static_cast<std::uint64_t>(dim));
    hasher.add(t.const_data_ptr(), static_cast<std::size_t>(t.nbytes()));
  }
  return checkpoint::to_hex(hasher.digest());
}

std::map<std::string, torch::Tensor> named_state(const torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> state;
  for (const auto& item : module.named_parameters()) state.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) state.emplace(item.key(), item.value());
  return state;
}

}  // namespace stormo::train
