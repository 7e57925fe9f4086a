#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <stormo/server/link/data_link.h>
#include <stormo/server/shard.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::server {

/// A shard of a server whose memory is not mapped here, mostly on another host. Weights and
/// gradients are sent from and to their memory. Deadlines count at the server, from the arrival of
/// the request. Memory: two copies of the weights, for the view in use and for the one that comes.
/// The server sends only what has changed since the one that is replaced, where that is less than
/// half of it.
class RemoteShard final : public Shard {
 public:
  /// `number`: of the server's shards. kIo without memory.
  static Result<std::unique_ptr<Shard>> create(std::shared_ptr<DataLink> link, std::uint32_t number,
                                               std::vector<ShardPiece> pieces,
                                               const ShardOptions& options);
  ~RemoteShard() override;

  const std::vector<ShardPiece>& pieces() const override { return pieces_; }
  bool is_remote() const override { return true; }
  Status set(std::size_t piece, const PieceArrays& values) override;
  void begin_read(Deadline by) override;
  void begin_push(const PushedGradient& gradient, Deadline by) override;
  void begin_part(const PushedGradient& gradient, std::span<const std::size_t> pieces) override;
  Result<const std::byte*> arrival(std::size_t piece) override;
  Result<View> read(Deadline by) override;
  Result<View> look() override;
  Result<View> save(
      const std::function<void(std::size_t piece, const PieceArrays&)>& copy) override;
  Result<Pushed> push(const PushedGradient& gradient, Deadline by) override;
  Result<Pushed> elastic_average(std::span<void* const> own, double alpha, std::uint64_t sequence,
                                 Deadline by) override;
  Result<std::uint64_t> leave(double lr) override;
  Result<Joined> join() override;
  Result<protocol::ShardState> state() const override;

 private:
  RemoteShard(std::shared_ptr<DataLink> link, std::uint32_t number, std::vector<ShardPiece> pieces,
              const ShardOptions& options);
  DataRequest request(DataOp op, Deadline by = Deadline::never()) const;
  std::byte* weights(std::size_t piece) const;
  ByteRanges all_weights() const;
  /// Waits for what was begun, and forgets its result.
  void drain();
  /// The reply goes to the copy of the weights that is not in use.
  std::shared_ptr<DataCall> start_view(DataRequest request);
  Result<View> take_view(std::string_view reply);
  /// Where the payload of this reply goes. Called by the link's thread.
  Result<ByteRanges> place_view(std::string_view reply);
  /// kCorrupt for ranges that do not fit.
  Status apply_changes(const ViewHead& head);

  std::shared_ptr<DataLink> link_;
  std::uint32_t number_;
  std::vector<ShardPiece> pieces_;
  std::vector<std::size_t> offsets_;  // of pieces in a copy
  std::size_t slots_, vectors_;       // numbers of arrays of each piece
  bool has_mean_square_;
  std::array<transport::MemoryFile, 2> copies_;
  std::array<std::optional<std::uint64_t>, 2> versions_;  // of the copies; empty: of none
  std::vector<std::byte> changes_;                // ranges and elements of a view that comes
  std::size_t next_copy_ = 0;                     // the one that is not in use
  std::shared_ptr<DataCall> read_, push_;         // begun
  std::atomic<bool> comes_whole_{false};          // what is read, piece by piece
  std::optional<View> arrived_;                   // of the read that was begun
  std::vector<std::shared_ptr<DataCall>> parts_;  // of the next push
};

}  // namespace stormo::server
