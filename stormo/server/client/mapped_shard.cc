#include <stormo/server/client/mapped_shard.h>

namespace stormo::server {

MappedShard::MappedShard(std::shared_ptr<ServerLink> link, transport::MemoryFile memory,
                         std::vector<ShardPiece> pieces, ShardOptions options, int worker)
    : link_(std::move(link)),
      memory_(std::move(memory)),
      shard_(std::move(pieces), options, worker,
             ShardWait{.policy = transport::wait_policy(options.workers, transport::usable_cores()),
                       .status = [link = link_.get()] { return link->status_while_waiting(); }}) {
  shard_.attach(memory_.data());
}

Status MappedShard::set(std::size_t piece, const PieceArrays& values) {
  STORMO_RETURN_IF_ERROR(link_->status());
  return shard_.set(piece, values);
}

Result<Shard::View> MappedShard::read(Deadline by) {
  STORMO_RETURN_IF_ERROR(link_->status());
  return shard_.read(by);
}

Result<Shard::View> MappedShard::look() {
  STORMO_RETURN_IF_ERROR(link_->status());
  return shard_.look();
}

Result<Shard::View> MappedShard::save(
    const std::function<void(std::size_t piece, const PieceArrays&)>& copy) {
  STORMO_RETURN_IF_ERROR(link_->status());
  return shard_.save(copy);
}

Result<Shard::Pushed> MappedShard::push(const PushedGradient& gradient, Deadline by) {
  STORMO_RETURN_IF_ERROR(link_->status());
  return shard_.push(gradient, by);
}

Result<Shard::Pushed> MappedShard::exchange(std::span<void* const> own, double alpha,
                                            std::uint64_t sequence, Deadline by) {
  STORMO_RETURN_IF_ERROR(link_->status());
  return shard_.exchange(own, alpha, sequence, by);
}

Result<std::uint64_t> MappedShard::leave(double lr) {
  STORMO_RETURN_IF_ERROR(link_->status());
  return shard_.leave(lr);
}

Result<Shard::Joined> MappedShard::join() {
  STORMO_RETURN_IF_ERROR(link_->status());
  return shard_.join();
}

Result<protocol::ShardState> MappedShard::state() const {
  STORMO_RETURN_IF_ERROR(link_->status());
  return shard_.state();
}

}  // namespace stormo::server
