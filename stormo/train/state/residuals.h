#pragma once

#include <string>

#include <stormo/comm/codec/encoded_sum.h>
#include <stormo/train/state/safetensors.h>

// What sums in a codec that encodes have lost on this rank, and keep for the next step.
namespace stormo::train {

/// By name and count of what is summed: gradients that are cut otherwise have other keys.
inline std::string residual_key(const std::string& name, const comm::EncodedSum& sum) {
  return std::to_string(sum.count()) + "." + name;
}

/// Shares its memory; of shape [ranks + 1, numbers of a part].
inline torch::Tensor residual_of(comm::EncodedSum& sum) {
  const std::int64_t rows = sum.ranks() + 1;
  const auto numbers = static_cast<std::int64_t>(sum.residual().size());
  return torch::from_blob(sum.residual().data(), {rows, numbers / rows}, torch::kFloat32);
}

/// `sum` goes on with what is kept of such a sum, which is then not kept any more. Where gradients
/// were cut otherwise, or added up over other ranks, it begins with nothing.
inline void restore_residual(TensorMap& kept, const std::string& name, comm::EncodedSum& sum) {
  const auto found = kept.find(residual_key(name, sum));
  if (found == kept.end()) return;
  torch::Tensor own = residual_of(sum);
  if (found->second.sizes() == own.sizes()) own.copy_(found->second);
  kept.erase(found);
}

/// Copies what a sum has lost.
inline void add_residual(TensorMap& out, const std::string& name, comm::EncodedSum& sum) {
  out[residual_key(name, sum)] = residual_of(sum).clone();
}

}  // namespace stormo::train
