#include <stormo/server/client/remote_ledger.h>

#include <string>

namespace stormo::server {

Status RemoteLedger::deal(const Terms& terms) {
  return link_->call({.op = DataOp::kDeal, .given = {}, .terms = terms}).status();
}

Result<Ledger::Terms> RemoteLedger::terms() {
  return link_->ask<Terms>({.op = DataOp::kTerms, .given = {}});
}

Result<Ledger::Turn> RemoteLedger::next(const Outcome& outcome) {
  return link_->ask<Turn>({.op = DataOp::kNext, .given = {}, .outcome = outcome});
}

Result<Ledger::Turn> RemoteLedger::look() {
  return link_->ask<Turn>({.op = DataOp::kLookAtLedger, .given = {}});
}

Status RemoteLedger::wait(Deadline by) {
  return link_->call({.op = DataOp::kWait, .patience_ns = patience_of(by), .given = {}}).status();
}

Status RemoteLedger::leave() {
  return link_->call({.op = DataOp::kLeaveLedger, .given = {}}).status();
}

Status RemoteLedger::advance(std::uint64_t step) {
  return link_->call({.op = DataOp::kAdvance, .step = step, .given = {}}).status();
}

Status RemoteLedger::stop(int signal) {
  return link_->call({.op = DataOp::kStop, .signal = signal, .given = {}}).status();
}

}  // namespace stormo::server
