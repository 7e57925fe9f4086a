#include <stormo/comm/group/group.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include <stormo/comm/codec/encoded_sum.h>
#include <stormo/comm/group/posting.h>
#include <stormo/comm/operation/check_request.h>
#include <stormo/comm/operation/outcome.h>

namespace stormo::comm {
namespace {

constexpr Duration kGoodbye = std::chrono::seconds(2);

}  // namespace

Group::Group(Parts parts)
    : parts_(std::move(parts)),
      hosts_(HostMap::of(parts_.ranks_per_host)),
      host_layout_(host_layout_of(parts_.ranks_per_host, parts_.connections.host_group->crowded())),
      inline_(*parts_.connections.host_group),
      memory_(*parts_.connections.host_group) {
  if (parts_.activities == nullptr) parts_.activities = std::make_shared<Activities>();
  activity_ = parts_.activities->add(parts_.name, parts_.rank);
  for (PreparedCall& call : prepared_) {
    call.operands.local_rank = local_rank();
    call.operands.memory.resize(static_cast<std::size_t>(local_size()));
  }
}

Group::~Group() {
  if (!process_.is_here()) {
    // the parent's connections, and threads that are not here: kept for good, and reachable for
    // leak checkers
    static auto* const kept = new std::vector<Parts>;
    kept->push_back(std::move(parts_));
    return;
  }
  if (finalized_) return;
  if (parts_.name.empty()) {
    parts_.health->fail({Code::kCancelled, "the group was destroyed"});
  } else {
    parts_.connections.host_group->leave();  // the job goes on
  }
}

Status Group::refuse_child() const {
  return invalid_argument(
      fmt::format("rank {}'s group belongs to the process that joined it, and this is a child that "
                  "was forked from it: fork before you join, or start another program in the child",
                  rank()));
}

void Group::set_section(std::string_view text) {
  if (process_.is_here()) parts_.activities->set_section(text);
}

std::uint64_t Group::bytes_sent() const {
  return parts_.connections.network ? parts_.connections.network->counters().payload_bytes_sent : 0;
}

std::string Group::algorithm(plan::GoalKind goal, std::uint64_t bytes) const {
  return std::string(selection().choose(goal, host_layout_, size(), bytes).builder->name);
}

void Group::fail(Status cause) {
  if (!process_.is_here()) return;
  if (parts_.job_watch) cause = parts_.job_watch->report(cause);
  parts_.health->fail(std::move(cause));
}

Status Group::finalize(Deadline by) {
  STORMO_RETURN_IF_ERROR(check_process());
  if (finalized_) return {};
  STORMO_RETURN_IF_ERROR(run_barrier(OperationKind::kFinalize, by));
  finalized_ = true;
  parts_.connections.host_group->leave();
  if (parts_.job_watch && parts_.name.empty()) {
    // the process that hosts the store may already be gone: everybody has finished well
    const Status said = parts_.job_watch->goodbye(Deadline::after(kGoodbye));
    static_cast<void>(said);
  }
  return {};
}

Status Group::run(const Request& request, Deadline by) {
  STORMO_RETURN_IF_ERROR(check_process());
  if (auto outcome = lane_.run_if_idle([&] { return perform(request, by); })) return *outcome;
  return finish_in_turn(request.kind, submit(request), by);
}

Work Group::submit(const Request& request) {
  if (Status here = check_process(); !here.ok()) return Work::completed(std::move(here));
  return lane_.submit(
      [this, owned = OwnedRequest(request)] { return perform(owned.get(), Deadline::never()); });
}

/// A barrier of the group's own, in its place among the operations.
Status Group::run_barrier(OperationKind kind, Deadline by, std::uint32_t tag) {
  const auto body = [this, kind, by, tag] { return perform_barrier(kind, by, tag); };
  if (auto outcome = lane_.run_if_idle(body)) return *outcome;
  return finish_in_turn(kind, lane_.submit(body), by);
}

Status Group::finish_in_turn(OperationKind kind, Work work, Deadline by) {
  return comm::finish_in_turn(std::move(work), to_string(kind), by, [this](const Status& cause) {
    fail(cause.within(
        fmt::format("rank {} (host {}), {}", rank(), host(), parts_.activities->text())));
  });
}

Status Group::perform(const Request& request, Deadline by) {
  if (request.encoding != nullptr) {
    return request.encoding->perform(request, [&](const Request& r) { return perform(r, by); });
  }
  if (PreparedCall& call = prepared_for(request.kind); call.fits(request)) {
    return is_message(request.kind)
               ? run_message(request, by, call)
               : run_collective({request, by, call, /*is_prepared=*/true, call.operation});
  }
  STORMO_RETURN_IF_ERROR(check_request(request, rank(), size()));
  if (!request.algorithm.empty()) STORMO_RETURN_IF_ERROR(choice_for(request, 0).status());
  switch (request.kind) {
    case OperationKind::kBarrier: return perform_barrier(request.kind, by);
    case OperationKind::kSend:
    case OperationKind::kReceive: return perform_message(request, by);
    case OperationKind::kExclusiveScan:
      if (cross_size() > 1) return perform_exclusive_scan(request, by);
      break;
    default: break;
  }
  return in_place(request.kind) ? perform_in_turns(request, by) : collective(request, by);
}

/// A board has room for kMaxBuffers addresses.
Status Group::perform_in_turns(const Request& request, Deadline by) {
  if (request.in.size() <= Posting::kMaxBuffers) return collective(request, by);
  Request turn = request;
  for (std::size_t i = 0; i < request.in.size(); i += Posting::kMaxBuffers) {
    turn.in = request.in.subspan(i, std::min(Posting::kMaxBuffers, request.in.size() - i));
    turn.out = turn.in;
    STORMO_RETURN_IF_ERROR(collective(turn, by));
  }
  return {};
}

Status Group::perform_barrier(OperationKind kind, Deadline by, std::uint32_t tag) {
  // between hosts a barrier is an all-reduce in which every chunk has an element, so that every
  // message is really sent
  std::vector<std::uint8_t> token;
  Request request;  // an initializer list would clear all of it first: 25 ns of a barrier
  request.kind = kind;
  request.reduction = ReduceOp::kMax;
  request.tag = tag;
  if (cross_size() > 1) {
    const auto most = static_cast<std::size_t>(size());
    STORMO_ASSIGN_OR_RETURN(const Program* program, program_for(request, most));
    token.resize(static_cast<std::size_t>(program->chunks));
  }
  const Buffer buffer = token;
  if (!token.empty()) request.in = request.out = {&buffer, 1};
  return collective(request, by);
}

/// The transport that reaches `peer`, and its number there.
transport::Transport& Group::link_to(Rank peer, Rank& there) const {
  const auto index = static_cast<std::size_t>(peer);
  const bool here = hosts_.host[index] == cross_rank();
  there = here ? hosts_.local[index] : peer;
  return here ? *parts_.connections.local : *parts_.connections.network;
}

Status Group::perform_message(const Request& request, Deadline by) {
  PreparedCall& call = prepared_for(request.kind);
  call.operation = describe(request, size());
  call.operands.tag = fingerprint(call.operation);
  call.keep_for(request);
  return run_message(request, by, call);
}

Status Group::run_message(const Request& request, Deadline by, const PreparedCall& call) {
  if (finalized_) return invalid_argument("the group was finalized");
  const Operation& operation = call.operation;
  if (parts_.health->failed()) return status().within(to_text(operation));
  activity_->begin(operation);
  Rank there = 0;
  transport::Transport& link = link_to(request.root, there);
  const Buffer& data = request.in.front();
  const std::span bytes(static_cast<std::byte*>(data.data), data.bytes());
  const TimePoint start = sink_ != nullptr ? std::chrono::steady_clock::now() : TimePoint{};
  const Status outcome = outcome_of([&] {
    return request.kind == OperationKind::kSend ? link.send(there, call.operands.tag, bytes, by)
                                                : link.recv(there, call.operands.tag, bytes, by);
  });
  if (sink_ != nullptr) {
    record(Lane::kCommunication, operation, start, std::chrono::steady_clock::now());
  }
  if (!outcome.ok()) return give_up(operation, outcome);
  activity_->end();
  return {};
}

/// Between hosts: every rank passes its term to the next one; from then on it is an inclusive scan
/// of the ranks after the first.
Status Group::perform_exclusive_scan(const Request& request, Deadline by) {
  Request one = request;
  for (std::size_t i = 0; i < request.in.size(); ++i) {
    one.in = one.out = request.in.subspan(i, 1);
    STORMO_RETURN_IF_ERROR(shift_right(one, by).within(to_string(request.kind)));
  }
  return perform_in_turns(request, by);
}

Status Group::shift_right(const Request& request, Deadline by) {
  const Buffer& b = request.in.front();
  const auto* data = static_cast<const std::byte*>(b.data);
  std::vector<std::byte> copy(data, data + b.bytes());
  Request message = request;
  const Buffer kept{copy.data(), b.count, b.dtype};
  if (rank() + 1 < size()) {
    message.kind = OperationKind::kSend;
    message.root = rank() + 1;
    message.in = {&kept, 1};
    STORMO_RETURN_IF_ERROR(perform_message(message, by));
  }
  if (rank() == 0) return {};
  message.kind = OperationKind::kReceive;
  message.root = rank() - 1;
  message.in = request.in;
  return perform_message(message, by);
}

}  // namespace stormo::comm
