#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <stormo/server/link/server_link.h>
#include <stormo/server/shard.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::server {

/// A shard of a server's process on this host: its memory is mapped here, and reads and pushes are
/// done here. Every call fails when the server is lost.
class MappedShard final : public Shard {
 public:
  MappedShard(std::shared_ptr<ServerLink> link, transport::MemoryFile memory,
              std::vector<ShardPiece> pieces, ShardOptions options, int worker);

  const std::vector<ShardPiece>& pieces() const override { return shard_.pieces(); }
  Status set(std::size_t piece, const PieceArrays& values) override;
  Result<View> read(Deadline by) override;
  Result<View> look() override;
  Result<View> save(
      const std::function<void(std::size_t piece, const PieceArrays&)>& copy) override;
  Result<Pushed> push(const PushedGradient& gradient, Deadline by) override;
  Result<Pushed> exchange(std::span<void* const> own, double alpha, std::uint64_t sequence,
                          Deadline by) override;
  Result<std::uint64_t> leave(double lr) override;
  Result<Joined> join() override;
  Result<protocol::ShardState> state() const override;

 private:
  std::shared_ptr<ServerLink> link_;
  transport::MemoryFile memory_;
  SharedShard shard_;
};

}  // namespace stormo::server
