#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/kernels/kernels.h>
#include <stormo/transport/shm/peer_memory.h>

namespace stormo::comm {

/// The operands of one reduction that are in memory of peers that this process has not mapped. They
/// are read block by block by system calls, so that a block is combined, and the result written
/// back, while it is in the cache.
class RemoteOperands {
 public:
  /// `blocks` is temporary memory: it grows as needed, and the caller keeps it between reductions.
  explicit RemoteOperands(std::vector<std::byte>& blocks) : blocks_(blocks) {}

  void clear() {
    sources_.clear();
    destinations_.clear();
  }
  bool empty() const { return sources_.empty() && destinations_.empty(); }
  /// sources[index] of combine() is at address `at` of that memory.
  void add_source(std::size_t index, const transport::PeerMemory& memory, const std::byte* at) {
    sources_.push_back({index, &memory, const_cast<std::byte*>(at)});
  }
  /// A destination in addition to those given to combine().
  void add_destination(const transport::PeerMemory& memory, std::byte* at) {
    destinations_.push_back({0, &memory, at});
  }

  using Combine =
      std::function<void(std::span<const Operand>, std::span<void* const>, std::int64_t)>;
  /// Applies `combine` to all operands, `count` elements of `width` bytes.
  Status combine(std::span<const Operand> sources, std::span<void* const> destinations,
                 std::int64_t count, std::size_t width, const Combine& combine);

 private:
  struct Far {
    std::size_t index;
    const transport::PeerMemory* memory;
    std::byte* at;
  };
  Status combine_block(std::span<const Operand> sources, std::span<void* const> destinations,
                       std::size_t offset, std::size_t bytes, std::size_t width,
                       const Combine& combine);

  std::vector<std::byte>& blocks_;
  std::vector<Far> sources_;
  std::vector<Far> destinations_;
  std::vector<Operand> near_sources_;     // of the current block
  std::vector<void*> near_destinations_;  // of the current block
};

}  // namespace stormo::comm
