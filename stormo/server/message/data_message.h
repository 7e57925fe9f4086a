#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/optim/vector_program.h>
#include <stormo/protocol/server/shard_state.h>
#include <stormo/server/ledger.h>
#include <stormo/server/message/server_message.h>
#include <stormo/server/shard.h>
#include <stormo/server/shard/shard_memory.h>

namespace stormo::optim {

void fields(auto& visit, transport::Like<VectorTerm> auto& term) {
  visit("vector program", term.factor, term.vector);
}
void fields(auto& visit, transport::Like<VectorStep> auto& step) {
  visit("vector program",
        transport::within(step.kind, VectorStep::Kind::kGradient, VectorStep::Kind::kUpdate),
        step.to, step.lr, step.terms);
}

}  // namespace stormo::optim
namespace stormo::protocol {

void fields(auto& visit, transport::Like<PushDecision> auto& decision) {
  visit("decision about a push",
        transport::within(decision.action, PushAction::kWait, PushAction::kAddAndUpdate),
        decision.staleness, decision.gradient_factor, decision.rate_factor);
}
void fields(auto& visit, transport::Like<Staleness> auto& staleness) {
  visit("staleness", staleness.count, staleness.sum, staleness.max, staleness.histogram);
}
void fields(auto& visit, transport::Like<WorkerState> auto& worker) {
  visit("state of a worker", worker.reads, worker.pushes, worker.version_read, worker.dropped,
        worker.version_used, worker.active, worker.staleness);
}
void fields(auto& visit, transport::Like<ShardState> auto& state) {
  constexpr std::size_t kMostWorkers = server::ShardMemory::kMaxWorkers;
  visit("state of a shard", state.version, state.pending, state.pending_weight, state.pending_loss,
        state.counted, transport::at_most(kMostWorkers, state.workers));
}

}  // namespace stormo::protocol
namespace stormo::server {

// Messages between a worker and a server on the data connection of a worker that does not map the
// server's memory; and between a server and its backup, which executes the same requests. A message
// is a frame and a payload: the bytes of arrays, whose number both sides know from the frame and
// the layout of the shard. Replies come in the order of requests; the frame is a transport::Reply.

/// Values are wire format: append only.
enum class DataOp : std::uint8_t {
  /// Payload of the reply: weights of all pieces; or ranges that have changed since the version
  /// that the worker has, then their elements, see ViewHead.
  kRead = 1,
  kLook = 2,  ///< same
  kPush = 3,  ///< payload: gradients of the pieces that have one; of rows indices, then values
  kSet = 4,   ///< payload: arrays of the piece that are given, in the order of kSave
  /// Payload of the reply: of each piece weights, slots, mean square of gradients, vectors.
  kSave = 5,
  kLeave = 6,
  kJoin = 7,
  kState = 8,
  kDeal = 9,  ///< from here on about the ledger
  kTerms = 10,
  kNext = 11,
  kLookAtLedger = 12,
  kWait = 13,
  kStop = 14,
  kLeaveLedger = 15,
  kExchange = 16,  ///< payload both ways: the worker's values of all pieces
  kLose = 17,      ///< to a backup: the worker is lost, in all shards and in the ledger
  kComeBack = 18,  ///< to a backup: it is back
  kRun = 19,       ///< of a coordinator: a vector program
  kAdvance = 20,   ///< of a coordinator, about the ledger
  kPart = 21,      ///< of a push that comes; payload: gradients of some pieces
  kElect = 22,     ///< to a backup: worker is the next chief
};
bool is_of_ledger(DataOp op);
/// Only a coordinator may ask for it.
bool is_command(DataOp op);
/// A coordinator may ask for it: it is no member of the shards.
bool is_of_coordinator(DataOp op);
/// What a primary tells its backup about a worker. No worker asks for it.
bool is_about_worker(DataOp op);
/// Doing it again changes nothing, so its answer is not kept.
bool is_harmless(DataOp op);

/// What an array of a payload is. kSentBefore: of a push, a kPart had it.
inline constexpr char kNotGiven = 0, kArrayGiven = 1, kRowsGiven = 2, kSentBefore = 3;

/// Of the gradient of a piece that is given in rows; else 0.
struct RowsHead {
  std::int64_t count = 0;       ///< of rows
  std::int64_t row_length = 0;  ///< elements
  bool operator==(const RowsHead&) const = default;
};
void fields(auto& visit, Like<RowsHead> auto& rows) {
  visit("list of rows", rows.count, rows.row_length);
}

void fields(auto& visit, Like<Ledger::Terms> auto& terms) {
  visit("terms of the ledger", terms.first_step, terms.steps, terms.first_sample, terms.by_speed,
        terms.portions);
}
void fields(auto& visit, Like<Ledger::Outcome> auto& outcome) {
  visit("outcome", outcome.loss_sum, outcome.samples);
}

/// The head of a request. Fields that an operation does not use are 0.
struct DataRequest {
  DataOp op = DataOp::kRead;
  std::uint32_t shard = 0;                    ///< of those of the server; 0 for the ledger
  std::uint64_t id = 0;                       ///< grows; a request that is repeated keeps its own
  std::int64_t patience_ns = 0;               ///< time until the caller's deadline; -1: none
  std::optional<std::uint64_t> version = {};  ///< kRead, kLook: of the weights that the worker has
  std::uint64_t piece = 0;                    ///< kSet
  std::int32_t signal = 0;                    ///< kStop
  std::uint64_t step = 0;                     ///< kAdvance
  std::uint64_t term = 0;                     ///< kElect: its number
  double alpha = 0;                           ///< kExchange
  /// kPush, but for its pieces; of kPart and kExchange the sequence, of kLeave the learning rate.
  PushedGradient push = {.pieces = {}, .gradient_scale = 0, .weight = 0};
  std::int64_t updates = 0;  ///< kSet
  std::string given;  ///< a byte for each array that the payload may have: kNotGiven or another
  Ledger::Terms terms = {};         ///< kDeal
  Ledger::Outcome outcome = {};     ///< kNext
  std::string program = {};         ///< kRun
  std::vector<RowsHead> rows = {};  ///< kPush: by piece; empty if none is given in rows
  // to a backup:
  std::int32_t worker = -1;  ///< in whose name
  std::uint64_t origin = 0;  ///< the id that the worker gave it
  std::string result = {};   ///< what it must give
};
void fields(auto& visit, Like<DataRequest> auto& r) {
  visit("request", transport::within(r.op, DataOp::kRead, DataOp::kElect), r.shard, r.id,
        transport::within(r.patience_ns, -1, std::numeric_limits<std::int64_t>::max()), r.version,
        r.push.sequence, r.piece, r.signal, r.step, r.term, r.push.lr, r.alpha,
        r.push.gradient_scale, r.push.weight, r.push.loss_sum,
        transport::within(r.push.portion, -1, protocol::kMaxPortions - 1), r.push.batch, r.updates,
        r.given, r.terms, r.outcome, r.program, r.rows, r.worker, r.origin, r.result);
  const char last = r.op == DataOp::kPush ? kSentBefore : kArrayGiven;
  visit.require(std::ranges::all_of(r.given, [last](char a) { return a >= 0 && a <= last; }),
                "a list of arrays");
  bool rows_are_given =
      r.rows.empty() || (r.op == DataOp::kPush && r.rows.size() == r.given.size());
  for (std::size_t i = 0; i < r.given.size() && rows_are_given; ++i) {
    const RowsHead rows = r.rows.empty() ? RowsHead() : r.rows[i];
    const bool has_rows = rows.count >= 0 && rows.row_length >= 1;
    rows_are_given = r.given[i] == kRowsGiven ? has_rows : rows == RowsHead();
  }
  visit.require(rows_are_given, "a list of rows");
}
/// DataRequest::patience_ns of a caller with this deadline.
std::int64_t patience_of(Deadline by);

/// Result of kRead, kLook and kSave.
struct ViewHead {
  std::uint64_t version = 0, commit = 0;
  std::vector<std::int64_t> updates = {};  ///< by piece; kSave only
  /// Of kRead and kLook: the payload is a list of ChangedRange, then the elements of these.
  bool has_changes = false;
  std::uint64_t ranges = 0, bytes = 0;  ///< their number, and bytes of their elements
};
void fields(auto& visit, Like<ViewHead> auto& view) {
  visit("version", view.version, view.commit, view.updates, view.has_changes, view.ranges,
        view.bytes);
}
void fields(auto& visit, Like<Shard::Pushed> auto& pushed) {
  visit("answer to a push", pushed.decision, pushed.commit);
}
void fields(auto& visit, Like<Shard::Joined> auto& joined) {
  visit("answer to a join", joined.sequence, joined.commit);
}
void fields(auto& visit, Like<StepTask> auto& task) { visit("task", task.part, task.step); }
void fields(auto& visit, Like<Ledger::Totals> auto& totals) {
  visit("totals", totals.loss_sum, totals.samples);
}
void fields(auto& visit, Like<Ledger::Losses> auto& losses) {
  visit("losses", losses.worker, losses.lost, losses.came_back);
}
void fields(auto& visit, Like<Ledger::Turn> auto& turn) {
  constexpr std::size_t kMostWorkers = ShardMemory::kMaxWorkers;
  visit("turn", turn.task, turn.ends_share, turn.all_done, turn.stop_signal, turn.totals,
        turn.position, turn.others, turn.again, turn.is_computed,
        transport::at_most(kMostWorkers, turn.losses));
}

/// A worker opens a data connection; the request kAttach has it.
struct Attachment {
  std::int32_t worker = 0;
  std::int32_t part = 0;  ///< the shards of this server of the list, with backups those it had
  std::uint64_t token = 0;
  bool coordinates = false;  ///< for the run's coordinator, in the process of worker 0
  bool operator==(const Attachment&) const = default;
};
void fields(auto& visit, Like<Attachment> auto& attachment) {
  visit("attachment", attachment.worker, attachment.part, attachment.token, attachment.coordinates);
}

}  // namespace stormo::server
