// How a call runs. In a collective the ranks of a host post what they called, wait for each other,
// compare, and then either take small payloads straight from the boards or run the schedule's
// program on each other's memory.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

#include <stormo/comm/codec/encoded_sum.h>
#include <stormo/comm/group/group.h>
#include <stormo/comm/group/posting.h>
#include <stormo/comm/operation/check_request.h>
#include <stormo/comm/operation/outcome.h>

namespace stormo::comm {
namespace {

/// How long a mismatch waits for ranks that have not called anything, for its table.
constexpr Duration kAllAtTheTable = std::chrono::milliseconds(200);

}  // namespace

// Whoever asks runs the call at once: here this is compiled into perform().
bool PreparedCall::fits(const Request& request) const {
  const bool apart = !in_place(request.kind);
  if (!kept_ || !is_plain(request) || request.root != operation.root ||
      request.tag != operation.tag ||
      (reduces(request.kind) && request.reduction.op != operation.op) ||
      request.in.size() != num_in_ || (apart && num_in_ + request.out.size() != counts_.size())) {
    return false;
  }
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    const Buffer& b = i < num_in_ ? request.in[i] : request.out[i - num_in_];
    if (b.count != counts_[i] || b.dtype != dtype_ || b.device.kind != Device::Kind::kCpu ||
        (b.data == nullptr && b.count != 0)) {
      return false;
    }
  }
  return !apart || are_apart(request);
}

Status Group::run(const Request& request, Deadline by) {
  STORMO_RETURN_IF_ERROR(check_process());
  if (is_message(request.kind)) return run_message(request, limit(by));
  if (auto outcome = lane_.run_if_idle([&] { return perform(request, limit(by)); })) {
    return *outcome;
  }
  return finish_in_turn(submit(request), to_string(request.kind), by, [this](const Status& cause) {
    fail(cause.within(
        fmt::format("rank {} (host {}), {}", rank(), host(), parts_.activities->text())));
  });
}

Work Group::submit(const Request& request) {
  if (Status here = check_process(); !here.ok()) return Work::completed(std::move(here));
  if (is_message(request.kind)) return submit_message(request);
  return lane_.submit(
      [this, owned = OwnedRequest(request)] { return perform(owned.get(), limit()); });
}

Status Group::perform(const Request& request, Deadline by) {
  if (request.encoding != nullptr) {
    return request.encoding->perform(request, [&](const Request& r) { return perform(r, by); });
  }
  PreparedCall& call = prepared_for(request.kind);
  if (!call.fits(request)) {
    STORMO_RETURN_IF_ERROR(check_request(request, rank(), size()));
    if (has_turns(request)) return perform_in_turns(request, by);
    if (needs_token(request)) return perform_with_token(request, by);
    const Status prepared = outcome_of([&] { return prepare(request, call); });
    // refusals are the same on all ranks, but not a lack of memory
    if (prepared.code() == Code::kException) return give_up(describe(request, size()), prepared);
    STORMO_RETURN_IF_ERROR(prepared);
  }
  if (finalized_) return invalid_argument("the group was left or finalized");
  if (parts_.health->failed()) {
    call.operation.sequence = 0;  // this call has none
    return status().within(to_text(call.operation));
  }
  // a reduction of the user's may throw
  const Status outcome = outcome_of([&] { return run_collective(request, by, call); });
  if (outcome.ok()) return outcome;
  return finalized_ ? cancel() : give_up(call.operation, outcome);
}

/// A board has room for kMaxBuffers addresses.
Status Group::perform_in_turns(const Request& request, Deadline by) {
  Request turn = request;
  for (std::size_t i = 0; i < request.in.size(); i += Posting::kMaxBuffers) {
    turn.in = request.in.subspan(i, std::min(Posting::kMaxBuffers, request.in.size() - i));
    turn.out = turn.in;
    STORMO_RETURN_IF_ERROR(perform(turn, by));
  }
  return {};
}

/// Between hosts a barrier is an all-reduce in which every chunk has an element, so that every
/// message is really sent.
Status Group::perform_with_token(const Request& request, Deadline by) {
  STORMO_ASSIGN_OR_RETURN(const Choice choice,
                          choice_for(request, static_cast<std::uint64_t>(size())));
  STORMO_ASSIGN_OR_RETURN(const Program* program, program_for(request, choice));
  std::vector<std::uint8_t> token(static_cast<std::size_t>(program->chunks));
  const Buffer buffer = token;
  Request with = request;
  with.in = with.out = {&buffer, 1};
  return perform(with, by);
}

Status Group::run_collective(const Request& request, Deadline by, PreparedCall& call) {
  call.operation.sequence = ++sequence_;
  const bool weighted = call.operation.op == ReduceOp::kWeightedAverage;
  double weight_of_all = request.weight;
  if (cross_size() > 1 && weighted) {
    STORMO_ASSIGN_OR_RETURN(weight_of_all, total_weight(request, by));
  }
  if (request.kind == OperationKind::kExclusiveScan && !in_one_pass(request)) {
    STORMO_RETURN_IF_ERROR(shift_right(request, by).within(to_string(request.kind)));
  }
  const TimePoint start = now();
  const bool late = ended_early_;
  if (late) {
    // it may be long until the others call the last operation: this one waits for them, and the
    // stall watch is to see it
    activity_->begin(call.operation);
    STORMO_RETURN_IF_ERROR(wait_for({0, local_size()}, by));
  }
  STORMO_RETURN_IF_ERROR(post(request, call));
  if (!late) activity_->begin(call.operation);  // while the arrival is on its way
  const LocalRange needed = call.posted_whole ? call.sources : LocalRange{0, local_size()};
  if (local_size() > 1) STORMO_RETURN_IF_ERROR(wait_for(needed, by));
  const TimePoint met = now();
  if (local_size() > 1) record(Lane::kWait, call.operation, start, met);
  if (weighted) weigh_scales(request, call, weight_of_all);
  if (call.posted_whole) {
    inline_.finish(request, needed, call.operands);
  } else if (call.can_be_cut && memory_.is_in_pieces()) {
    activity_->end();
    return run_in_pieces(request, by, *call.program);
  } else {
    STORMO_RETURN_IF_ERROR(run_program(request, by, call));
  }
  record(Lane::kCommunication, call.operation, met, now());
  const bool waited = late || parts_.connections.host_group->waited();
  if (call.posted_whole && !waited && call.operands.user == nullptr) {
    activity_->end_at_once();
  } else {
    activity_->end();
  }
  return {};
}

/// Posts this rank's operation with its data or addresses.
Status Group::post(const Request& request, PreparedCall& call) {
  transport::HostGroup& host = *parts_.connections.host_group;
  host.next_operation();
  const Posted mine(host, local_rank());
  const Tag tag = numbered(call.form, call.operation.sequence);
  mine.posting().weight = request.weight;
  mine.posting().operation = words_of(call.operation);
  mine.posting().next_time = Posting::NextTime::kNoProposal;
  mine.posting().in_pieces = false;
  if (call.posted_whole) {
    inline_.post(request, call.posted_bytes);
  } else {
    call.operands.tag = tag;
    STORMO_RETURN_IF_ERROR(
        in_place(request.kind)
            ? memory_.post_in_place(request, rank(), *call.program, call.can_be_cut, call.operands)
            : memory_.post_parts(request, rank(), size(), *call.program, call.operands));
  }
  // last, with the flag on the same line: peers that look for the flag would take the line away
  mine.note().fingerprint = tag;
  if (local_size() > 1) host.arrive();
  return {};
}

/// Waits for these ranks of this host to call the last operation that was posted, and compares.
/// A rank that needed nothing of some others goes on without them; it waits for all in its next
/// operation, so that no posting is overwritten before all have seen it. Every rank of the host
/// sees every posting sooner or later, so all of them come to the same verdict.
Status Group::wait_for(LocalRange whose, Deadline by) {
  transport::HostGroup& host = *parts_.connections.host_group;
  ended_early_ = whose != LocalRange{0, local_size()};
  if (!ended_early_) STORMO_RETURN_IF_ERROR(host.await_all(by));
  const Tag mine = Posted(host, local_rank()).note().fingerprint;
  bool equal = true;
  for (int r = whose.first; r < whose.last; ++r) {
    if (ended_early_) STORMO_RETURN_IF_ERROR(host.await(r, by));
    equal &= Posted(host, r).note().fingerprint == mine;
  }
  return equal ? Status() : mismatch();
}

Status Group::mismatch() const {
  transport::HostGroup& host = *parts_.connections.host_group;
  std::string table = fmt::format("ranks of host {} called different operations", parts_.host);
  if (cross_size() > 1) return {Code::kMismatch, table};  // the job watch asks all hosts
  // the table wants everybody, but says it also of those who do not come
  static_cast<void>(host.await_all(Deadline::after(kAllAtTheTable)));
  for (int r = 0; r < host.size(); ++r) {
    table += fmt::format(
        "\n  rank {}: {}", r,
        host.has_arrived(r) ? to_text(std::bit_cast<Operation>(Posted(host, r).posting().operation))
                            : "nothing yet");
  }
  return {Code::kMismatch, table};
}

/// Between hosts the weights must be known before anything is scaled: one more small all-reduce.
Result<double> Group::total_weight(const Request& request, Deadline by) {
  if (request.total_weight > 0) return request.total_weight;
  double total = request.weight;
  const Buffer buffer = std::span(&total, 1);
  const Request sum{.kind = OperationKind::kAllReduce, .in = {&buffer, 1}, .out = {&buffer, 1}};
  if (!weights_.fits(sum)) STORMO_RETURN_IF_ERROR(prepare(sum, weights_));
  STORMO_RETURN_IF_ERROR(run_collective(sum, by, weights_));
  return total;
}

/// The ranks' shares in a weighted average.
void Group::weigh_scales(const Request& request, PreparedCall& call, double weight_of_all) const {
  std::vector<double>& scales = call.operands.scales;
  const auto weight_of = [&](std::size_t r) {
    return local_size() == 1
               ? request.weight
               : Posted(*parts_.connections.host_group, static_cast<int>(r)).posting().weight;
  };
  double total = weight_of_all;
  if (cross_size() == 1) {
    total = 0;
    for (std::size_t r = 0; r < scales.size(); ++r) total += weight_of(r);
  }
  for (std::size_t r = 0; r < scales.size(); ++r) {
    scales[r] = total > 0 ? weight_of(r) / total : 0;
  }
}

/// What this rank does with the memory of its peers, it does in here.
Status Group::run_program(const Request& request, Deadline by, PreparedCall& call) {
  transport::HostGroup& host = *parts_.connections.host_group;
  if (!host.fence().enter()) return host.why_closed();
  Status outcome = memory_.find_others(request, call.operands);
  if (outcome.ok()) {
    outcome = outcome_of([&] { return execute(*call.program, call.operands, executor_, by); });
  }
  host.fence().leave();
  if (outcome.ok() && memory_.has_private()) {
    memory_.copy_back(request, rank(), *call.program, call.operands);
  }
  return outcome;
}

/// The pieces of a large private buffer go through the Arena one after the other. Each is an
/// operation of its own: it begins when all have copied their piece, and has so taken the last one.
Status Group::run_in_pieces(const Request& request, Deadline by, const Program& program) {
  const MemoryMap::Measured measured = memory_.begin_pieces();
  const Buffer& whole = request.in.front();
  const std::size_t width = size_of(whole.dtype);
  Request r = request;
  for (std::int64_t begin = 0; begin < whole.count;) {
    Buffer piece = whole;
    piece.data = static_cast<std::byte*>(whole.data) + static_cast<std::size_t>(begin) * width;
    piece.count =
        std::min(whole.count - begin, static_cast<std::int64_t>(MemoryMap::kPiece / width));
    r.in = r.out = {&piece, 1};
    if (!piece_.fits(r)) STORMO_RETURN_IF_ERROR(prepare(r, piece_, &program));
    STORMO_RETURN_IF_ERROR(run_collective(r, by, piece_));
    begin += piece.count;
  }
  memory_.end_pieces(measured, request);
  return {};
}

/// Between hosts every rank passes its terms to the next one before an exclusive scan: from then on
/// it is an inclusive scan of the ranks after the first.
Status Group::shift_right(const Request& request, Deadline by) {
  for (const Buffer& b : request.in) {
    const auto* data = static_cast<const std::byte*>(b.data);
    std::vector<std::byte> copy(data, data + b.bytes());
    const Buffer kept{copy.data(), b.count, b.dtype};
    const auto pass = [&](OperationKind kind, const Buffer& buffer, Rank peer) {
      return run_message({.kind = kind, .in = {&buffer, 1}, .out = {&buffer, 1}, .root = peer}, by,
                         Mailbox::Channel::kShift);
    };
    if (rank() + 1 < size()) {
      STORMO_RETURN_IF_ERROR(pass(OperationKind::kSend, kept, rank() + 1));
    }
    if (rank() > 0) STORMO_RETURN_IF_ERROR(pass(OperationKind::kReceive, b, rank() - 1));
  }
  return {};
}

/// An operation failed, and the group with it.
Status Group::give_up(const Operation& operation, Status outcome) {
  const std::string text = to_text(operation);
  if (outcome.code() != Code::kMismatch && !parts_.health->failed()) {
    outcome = outcome.within(fmt::format("rank {} (host {}), {}", rank(), parts_.host, text));
  }
  Status cause = outcome;
  if (parts_.job_watch) {
    const bool message = is_message(operation.kind);
    cause = parts_.job_watch->report(
        outcome,
        {.group = message ? messages_name() : parts_.name, .size = size(), .operation = operation});
  }
  parts_.health->fail(cause);
  // the caller may use its buffers again as soon as it has the outcome
  parts_.connections.host_group->fence().close();
  if (!parts_.job_watch) cause = parts_.health->status();
  {
    const std::lock_guard lock(mutex_);
    if (first_cause_.ok()) first_cause_ = cause;
  }
  return cause.within(text);
}

Status Group::status() const {
  STORMO_RETURN_IF_ERROR(check_process());
  const std::lock_guard lock(mutex_);
  return first_cause_.ok() ? parts_.health->status() : first_cause_;
}

void Group::record(Lane lane, const Operation& operation, TimePoint start, TimePoint end) {
  if (Sink* const sink = sink_) sink->record(event_of(operation, lane, rank(), start, end));
}

}  // namespace stormo::comm
