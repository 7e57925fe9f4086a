#include <stormo/server/mapped_run.h>

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

MappedLedger::MappedLedger(std::shared_ptr<ServerLink> link, transport::MemoryFile memory,
                           int workers, int worker)
    : link_(std::move(link)), memory_(std::move(memory)), ledger_(workers, worker) {
  ledger_.attach(memory_.data());
}

Status MappedLedger::deal(const Terms& terms) {
  STORMO_RETURN_IF_ERROR(link_->status());
  return ledger_.deal(terms);
}

Result<Ledger::Terms> MappedLedger::terms() {
  STORMO_RETURN_IF_ERROR(link_->status());
  return ledger_.terms();
}

Result<Ledger::Turn> MappedLedger::next(const Outcome& outcome) {
  STORMO_RETURN_IF_ERROR(link_->status());
  return ledger_.next(outcome);
}

Result<Ledger::Turn> MappedLedger::look() {
  STORMO_RETURN_IF_ERROR(link_->status());
  return ledger_.look();
}

Status MappedLedger::wait(Deadline by) {
  return ledger_.wait(by, [this] { return link_->status_while_waiting(); });
}

Status MappedLedger::leave() {
  STORMO_RETURN_IF_ERROR(link_->status());
  return ledger_.leave();
}

Status MappedLedger::advance(std::uint64_t step) {
  STORMO_RETURN_IF_ERROR(link_->status());
  return ledger_.advance(step);
}

Status MappedLedger::stop(int signal) {
  STORMO_RETURN_IF_ERROR(link_->status());
  return ledger_.stop(signal);
}

}  // namespace stormo::server
