#include <stormo/server/message/data_message.h>

namespace stormo::server {

bool is_of_ledger(DataOp op) {
  return (op >= DataOp::kDeal && op <= DataOp::kLeaveLedger) || op == DataOp::kAdvance;
}

bool is_command(DataOp op) { return op == DataOp::kRun || op == DataOp::kAdvance; }

bool is_of_coordinator(DataOp op) {
  return is_command(op) || op == DataOp::kLookAtLedger || op == DataOp::kWait;
}

bool is_about_worker(DataOp op) {
  return op == DataOp::kLose || op == DataOp::kComeBack || op == DataOp::kElect;
}

bool is_harmless(DataOp op) {
  return op == DataOp::kLook || op == DataOp::kSave || op == DataOp::kState ||
         op == DataOp::kTerms || op == DataOp::kLookAtLedger || op == DataOp::kPart;
}

std::int64_t patience_of(Deadline by) { return by.is_never() ? -1 : by.remaining().count(); }

}  // namespace stormo::server
