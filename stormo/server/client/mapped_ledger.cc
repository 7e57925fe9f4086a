#include <stormo/server/client/mapped_ledger.h>

namespace stormo::server {

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
