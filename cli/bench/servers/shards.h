#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <stormo/comm/communicator.h>
#include <stormo/server/shard/shared_shard.h>

namespace stormo::cli {

/// Whether every element of every key is the number of all pushes, as far as a float32 can count.
/// Each shard has one key, and each push adds 1. `pushes`: those of this rank to each shard;
/// `shards`: as this rank sees them, may be none. A collective.
Result<bool> counts_all_pushes(comm::Communicator& world, std::uint64_t pushes,
                               std::span<server::Shard* const> shards);

/// The pointers, for a call.
template <class T>
std::vector<server::Shard*> pointers(const std::vector<std::unique_ptr<T>>& shards) {
  std::vector<server::Shard*> out;
  for (const auto& shard : shards) out.push_back(shard.get());
  return out;
}

/// Server shards in the Arena of rank 0, each with one key of float32, that all ranks push to.
/// Every gradient is -1, and the learning rate 1: an element counts the pushes, as far as float32
/// can.
class BenchShards {
 public:
  /// A collective. `bytes`: of a key.
  static Result<std::unique_ptr<BenchShards>> create(comm::Communicator& world, int servers,
                                                     std::uint64_t bytes);
  ~BenchShards();
  BenchShards(const BenchShards&) = delete;

  /// Reads every key, copies it if `copies`, and pushes a gradient to every key.
  Status pull_and_push(bool copies);
  /// As many bytes, by memcpy alone: every key out of the shared memory, every gradient into it.
  void copy();
  /// Whether every element of every key is the number of all pushes. A collective.
  Result<bool> counted_all();

 private:
  BenchShards(comm::Communicator& world, std::uint64_t bytes) : world_(world), bytes_(bytes) {}
  Status make_shards(int servers);
  Status make_buffers(int servers);

  comm::Communicator& world_;
  std::size_t bytes_;
  std::vector<std::unique_ptr<server::SharedShard>> shards_;
  std::vector<std::byte*> memory_;        // of shards, on rank 0
  std::vector<std::byte*> received_;      // by shard: what memcpy pushes into, shared memory
  std::vector<float> gradient_, pulled_;  // of one key; private
  std::uint64_t sequence_ = 0;            // of the next push to each shard
};

}  // namespace stormo::cli
