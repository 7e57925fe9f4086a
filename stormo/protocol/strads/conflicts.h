#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::protocol {

/// Which pairs of blocks must not be updated at the same time, because their interference is at or
/// above a threshold. A plain value; without pairs everything may be.
class Conflicts {
 public:
  struct Pair {
    std::int32_t a = 0, b = 0;
    bool operator==(const Pair&) const = default;
  };

  Conflicts() = default;
  /// Pairs of different blocks from 0 to blocks - 1, each once, in any order; else
  /// kInvalidArgument. Memory: 8 bytes for each pair and for each block, beside `pairs`.
  static Result<Conflicts> of(std::int64_t blocks, std::span<const Pair> pairs);

  /// Those in conflict with `block`.
  std::span<const std::int32_t> of_block(std::int64_t block) const;
  std::int64_t pairs() const { return std::ssize(others_) / 2; }
  /// All of them, a < b, in order: of() makes the same conflicts of them.
  std::vector<Pair> all_pairs() const;

 private:
  std::vector<std::int64_t> begins_;  // by block, and the end; empty: no pairs
  std::vector<std::int32_t> others_;
};

}  // namespace stormo::protocol
