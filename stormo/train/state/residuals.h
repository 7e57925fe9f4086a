#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <stormo/comm/codec/encoded_sum.h>
#include <stormo/train/state/safetensors.h>

// What sums in a codec that encodes keep for the next step: what they have lost on this rank, if
// they have error feedback, and how many there were.
namespace stormo::train {

/// Of the number of sums, behind which stands that of ranks: all of them have the same number.
inline constexpr std::string_view kSumsSuffix = ".sums";

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
  const std::string key = residual_key(name, sum);
  if (const auto node = kept.extract(key + std::string(kSumsSuffix)); !node.empty()) {
    const auto* const saved = node.mapped().const_data_ptr<std::int64_t>();
    if (saved[1] == sum.ranks()) sum.set_sums(static_cast<std::uint64_t>(saved[0]));
  }
  const auto node = kept.extract(key);
  if (node.empty()) return;
  torch::Tensor own = residual_of(sum);
  if (node.mapped().sizes() == own.sizes()) own.copy_(node.mapped());
}

/// Copies what a sum keeps.
inline void add_residual(TensorMap& out, const std::string& name, comm::EncodedSum& sum) {
  const std::string key = residual_key(name, sum);
  const std::vector<std::int64_t> sums = {static_cast<std::int64_t>(sum.sums()), sum.ranks()};
  out[key + std::string(kSumsSuffix)] = torch::tensor(sums, torch::kInt64);
  if (sum.has_error_feedback()) out[key] = residual_of(sum).clone();
}

}  // namespace stormo::train
