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

/// Of numbers that a sum keeps. What was lost has the key of the sum.
inline std::string key_of(const comm::EncodedSum::Kept& kept, const std::string& sum) {
  return kept.name.empty() ? sum : std::string(kept.name) + "." + sum;
}

/// Whether all ranks have the same under a key. The others, of what was lost, begin with a count.
inline bool is_equal_on_ranks(std::string_view key) {
  return key.find_first_of("0123456789") != 0 || key.ends_with(kSumsSuffix);
}

/// Shares its memory.
inline torch::Tensor tensor_of(const comm::EncodedSum::Kept& kept) {
  const auto numbers = static_cast<std::int64_t>(kept.numbers.size());
  return torch::from_blob(kept.numbers.data(), {kept.rows, numbers / kept.rows}, torch::kFloat32);
}

/// Of numbers that were kept in rows of parts (comm::SumOfCodes), those of one kind, in their
/// order. `first`: its first row, of `ranks`.
inline torch::Tensor kept_of_parts(const torch::Tensor& kept, std::int64_t first,
                                   std::int64_t ranks, std::int64_t count) {
  return kept.narrow(0, first, ranks).flatten().narrow(0, 0, count);
}

/// Gives `own`, of a sum over `ranks`, what was kept in rows of other parts, over `before` ranks:
/// what was lost of terms, and their momentum. What was lost of sums is among it, see
/// residuals_for().
inline void take_other_parts(const torch::Tensor& own, std::int64_t ranks,
                             const torch::Tensor& kept, std::int64_t before, std::int64_t count) {
  if (before < 1 || kept.dim() != 2 || kept.size(1) * before < count) return;
  for (const bool momentum : {false, true}) {
    const std::int64_t first = momentum ? ranks + 1 : 0, was = momentum ? before + 1 : 0;
    if (own.size(0) < first + ranks || kept.size(0) < was + before) continue;
    kept_of_parts(own, first, ranks, count).copy_(kept_of_parts(kept, was, before, count));
  }
}

/// `sum` goes on with what is kept of such a sum, which is then not kept any more. Where gradients
/// were cut otherwise it begins with nothing.
inline void restore_residual(TensorMap& kept, const std::string& name, comm::EncodedSum& sum) {
  const std::string key = residual_key(name, sum);
  std::int64_t before = sum.ranks();
  if (const auto node = kept.extract(key + std::string(kSumsSuffix)); !node.empty()) {
    const auto* const saved = node.mapped().const_data_ptr<std::int64_t>();
    before = saved[1];
    if (before == sum.ranks()) sum.set_sums(static_cast<std::uint64_t>(saved[0]));
  }
  for (const comm::EncodedSum::Kept& own : sum.kept()) {
    const auto node = kept.extract(key_of(own, key));
    torch::Tensor values = tensor_of(own);
    if (node.empty()) continue;
    if (own.rows > 1 && before != sum.ranks()) {
      take_other_parts(values, sum.ranks(), node.mapped(), before, sum.count());
    } else if (node.mapped().sizes() == values.sizes()) {
      values.copy_(node.mapped());
    }
  }
}

/// Copies what a sum keeps.
inline void add_residual(TensorMap& out, const std::string& name, comm::EncodedSum& sum) {
  const std::string key = residual_key(name, sum);
  const std::vector<std::int64_t> sums = {static_cast<std::int64_t>(sum.sums()), sum.ranks()};
  out[key + std::string(kSumsSuffix)] = torch::tensor(sums, torch::kInt64);
  for (const comm::EncodedSum::Kept& own : sum.kept()) {
    out[key_of(own, key)] = tensor_of(own).clone();
  }
}

}  // namespace stormo::train
