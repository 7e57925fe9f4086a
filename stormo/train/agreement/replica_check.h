#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::train {

/// Who is wrong when ranks that must be equal are not.
struct Verdict {
  std::vector<Rank> differing;  ///< from what more than half of the ranks hold; empty: all equal
  bool majority = true;         ///< false: no value has one, and `differing` differ from rank 0
};

/// By one value per rank.
Verdict majority_vote(std::span<const std::int64_t> hashes);

/// What two looks at the same values say of the cause of a difference, by the hashes of all ranks.
std::string compare_looks(std::span<const std::int64_t> first,
                          std::span<const std::int64_t> second);

/// kMismatch on every rank, naming the ranks that differ from the majority and the first tensor
/// they differ in, unless names, shapes, types and bytes of all parameters and buffers are equal on
/// all ranks; a second look then tells values that stay wrong from those that were only read so.
/// Buffers that differ by design (running statistics) must have been broadcast before. A
/// collective; costs one pass over the values and 8 bytes per rank.
Status check_replicas(comm::Communicator& world, const torch::nn::Module& module);

}  // namespace stormo::train
