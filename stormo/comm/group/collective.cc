// How a collective runs: the ranks of a host post what they called, wait for each other, compare,
// and then either take small payloads straight from the boards or run the schedule's program on
// each other's memory.
#include <fmt/format.h>

#include <bit>
#include <numeric>
#include <vector>

#include <stormo/comm/group/group.h>
#include <stormo/comm/group/posting.h>
#include <stormo/comm/operation/outcome.h>
#include <stormo/schedule/compose.h>

namespace stormo::comm {
namespace {

/// How long a mismatch waits for ranks that have not called anything, for its table.
constexpr Duration kAllAtTheTable = std::chrono::milliseconds(200);

Partition partition_of(const Request& r, int chunks, std::int64_t count, Rank me, int size) {
  if (r.kind == OperationKind::kAllToAll) {
    if (!r.counts.empty()) return Partition::pairs(chunks, me, r.counts, r.out_counts);
    const std::vector<std::int64_t> blocks(static_cast<std::size_t>(size), count / size);
    return Partition::pairs(chunks, me, blocks, blocks);
  }
  return r.counts.empty() ? Partition::even(chunks, count) : Partition::by_rank(chunks, r.counts);
}

}  // namespace

Status Group::collective(const Request& request, Deadline by) {
  PreparedCall& prepared = prepared_for(request.kind);
  const bool is_prepared = prepared.fits(request);
  return run_collective({request, by, prepared, is_prepared,
                         is_prepared ? prepared.operation : describe(request, size())});
}

Status Group::run_collective(Call call) {
  if (finalized_) return invalid_argument("the group was finalized");
  if (parts_.health->failed()) return status().within(to_text(call.operation));
  call.operation.sequence = ++sequence_;
  // a reduction of the user's may throw
  const Status outcome = outcome_of([&] { return run_checked(call); });
  if (!outcome.ok()) return give_up(call.operation, outcome);
  const PreparedCall& prepared = call.prepared;
  const bool waited = call.has_begun || parts_.connections.host_group->waited();
  if (prepared.posted_whole && !waited && prepared.operands.user == nullptr) {
    activity_->end_at_once();
  } else {
    activity_->end();
  }
  return {};
}

/// All that can be said without the call's place among the operations and its weights.
Status Group::prepare(const Call& under_way) {
  const Request& request = under_way.request;
  PreparedCall& call = under_way.prepared;
  call.forget();
  call.operation = under_way.operation;
  call.operation.sequence = 0;
  call.posted_whole = posts_whole(request);
  if (call.posted_whole) {
    call.posted_bytes = inline_.contribution(request);
    call.sources = inline_.sources(request);
  } else {
    const std::uint64_t bytes = call.operation.count * size_of(call.operation.dtype);
    STORMO_ASSIGN_OR_RETURN(call.program, program_for(request, bytes));
    describe_operands(request, call);
  }
  call.operands.how = combine_of(call.operation.op);
  call.operands.user = request.reduction.user.get();
  const double each = call.operation.op == ReduceOp::kAverage ? 1.0 / size() : 1.0;
  call.operands.scales.assign(static_cast<std::size_t>(local_size()), each);
  // between hosts an exclusive scan begins with messages, a weighted average with an all-reduce,
  // and a barrier brings its own buffer
  const bool is_more = cross_size() > 1 && (request.kind == OperationKind::kExclusiveScan ||
                                            request.kind == OperationKind::kBarrier ||
                                            call.operation.op == ReduceOp::kWeightedAverage);
  if (!is_more) call.keep_for(request);
  return {};
}

Status Group::run_checked(Call& call) {
  const bool weighted = call.operation.op == ReduceOp::kWeightedAverage;
  double weight_of_all = call.request.weight;
  if (weighted && cross_size() > 1) {
    STORMO_ASSIGN_OR_RETURN(weight_of_all, total_weight(call));
  }
  PreparedCall& prepared = call.prepared;
  // after the weights: their sum is an all-reduce of its own, which is prepared in the same place
  if (!call.is_prepared) STORMO_RETURN_IF_ERROR(prepare(call));
  const TimePoint start = sink_ != nullptr ? std::chrono::steady_clock::now() : TimePoint{};
  STORMO_RETURN_IF_ERROR(post_and_wait(call));
  const TimePoint met = sink_ != nullptr ? std::chrono::steady_clock::now() : TimePoint{};
  if (weighted) weigh_scales(call, weight_of_all);
  if (prepared.posted_whole) {
    inline_.finish(call.request, prepared.sources, prepared.operands);
  } else {
    STORMO_RETURN_IF_ERROR(run_program(call));
  }
  if (sink_ != nullptr) {
    if (local_size() > 1) record(Lane::kWait, call.operation, start, met);
    record(Lane::kCommunication, call.operation, met, std::chrono::steady_clock::now());
  }
  return {};
}

/// Posts this rank's operation with its data or addresses, and waits for those it needs something
/// of.
Status Group::post_and_wait(Call& call) {
  transport::HostGroup& host = *parts_.connections.host_group;
  PreparedCall& prepared = call.prepared;
  if (ended_early_) {
    // it may be long until the others call the last operation: this one waits for them, and the
    // stall watch is to see it
    activity_->begin(call.operation);
    call.has_begun = true;
    STORMO_RETURN_IF_ERROR(wait_for_all(call.by));
  }
  host.next_operation();
  const Posted mine(host, local_rank());
  const Tag tag = fingerprint(call.operation);
  mine.posting().weight = call.request.weight;
  mine.posting().operation = words_of(call.operation);
  mine.posting().next_time = Posting::NextTime::kNoProposal;
  if (prepared.posted_whole) {
    inline_.post(call.request, prepared.posted_bytes);
  } else {
    prepared.operands.tag = tag;
    STORMO_RETURN_IF_ERROR(
        memory_.post(call.request, rank(), size(), *prepared.program, prepared.operands));
  }
  // last, with the flag on the same line: peers that look for the flag would take the line away
  mine.note().fingerprint = tag;
  if (local_size() > 1) host.arrive();
  if (!call.has_begun) activity_->begin(call.operation);  // while the arrival is on its way
  if (local_size() == 1) return {};
  const LocalRange all{0, local_size()};
  const LocalRange needed = prepared.posted_whole ? prepared.sources : all;
  if (needed == all) return wait_for_all(call.by);
  ended_early_ = true;
  for (int r = needed.first; r < needed.last; ++r) STORMO_RETURN_IF_ERROR(host.await(r, call.by));
  return compare_postings(needed);
}

/// Waits for every rank of this host to call the last operation that was posted, and compares.
/// A rank that needed nothing of some others went on without them; it does this first in its next
/// operation, so that no posting is overwritten before all have seen it.
Status Group::wait_for_all(Deadline by) {
  ended_early_ = false;
  STORMO_RETURN_IF_ERROR(parts_.connections.host_group->await_all(by));
  return compare_postings({0, local_size()});
}

/// Every rank of the host sees every posting sooner or later, so all of them come to the same
/// verdict.
Status Group::compare_postings(LocalRange whose) {
  transport::HostGroup& host = *parts_.connections.host_group;
  const Tag mine = Posted(host, local_rank()).note().fingerprint;
  bool equal = true;
  for (int r = whose.first; r < whose.last; ++r) {
    equal &= Posted(host, r).note().fingerprint == mine;
  }
  if (equal) return {};
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
Result<double> Group::total_weight(const Call& call) {
  if (call.request.total_weight > 0) return call.request.total_weight;
  double total = call.request.weight;
  const Buffer buffer = std::span(&total, 1);
  STORMO_RETURN_IF_ERROR(collective(
      {.kind = OperationKind::kAllReduce, .in = {&buffer, 1}, .out = {&buffer, 1}}, call.by));
  return total;
}

/// The ranks' shares in a weighted average.
void Group::weigh_scales(const Call& call, double weight_of_all) {
  std::vector<double>& scales = call.prepared.operands.scales;
  const auto weight_of = [&](std::size_t r) {
    return local_size() == 1
               ? call.request.weight
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

void Group::describe_operands(const Request& request, PreparedCall& call) const {
  const auto count = static_cast<std::int64_t>(call.operation.count);
  call.operands.dtype = call.operation.dtype;
  call.operands.partition = partition_of(request, call.program->chunks, count, rank(), size());
  if (in_place(request.kind)) {
    call.operands.layout.assign(request.in);
  } else {
    const Buffer whole{nullptr, count, call.operation.dtype};
    call.operands.layout.assign({&whole, 1});
  }
}

/// What this rank does with the memory of its peers, it does in here.
Status Group::run_program(const Call& call) {
  transport::HostGroup& host = *parts_.connections.host_group;
  if (!host.fence().enter()) return {Code::kCancelled, "the group of this host has failed"};
  const PreparedCall& prepared = call.prepared;
  memory_.find_others(call.request, call.prepared.operands);
  const Executor executor{parts_.connections.network.get(),
                          [&host](Deadline by) { return host.sync(by); }, &workspace_};
  const Status outcome =
      outcome_of([&] { return execute(*prepared.program, prepared.operands, executor, call.by); });
  host.fence().leave();
  if (outcome.ok()) memory_.copy_back(call.request, rank());
  return outcome;
}

/// What the caller asked for, else what the selection says.
Result<Choice> Group::choice_for(const Request& request, std::uint64_t bytes) const {
  const plan::GoalKind goal = goal_of(request.kind);
  constexpr std::string_view kForUnequalParts = "pairwise_all_to_all";
  const bool unequal = goal == plan::GoalKind::kAllToAll && !request.counts.empty();
  if (request.algorithm.empty()) {
    const Choice chosen = selection().choose(goal, host_layout_, size(), bytes);
    if (!unequal || !chosen.builder->forwards) return chosen;
    return Choice{*schedule::find_builder(kForUnequalParts), 1};
  }
  STORMO_ASSIGN_OR_RETURN(const schedule::Builder* builder,
                          schedule::find_builder(request.algorithm));
  const Choice choice{builder, request.pieces};
  STORMO_RETURN_IF_ERROR(check_choice(choice, goal, parts_.ranks_per_host));
  if (unequal && builder->forwards) {
    return invalid_argument(
        fmt::format("{} needs equal parts, because ranks pass on those of "
                    "others; use {}",
                    builder->name, kForUnequalParts));
  }
  return choice;
}

Result<const Program*> Group::program_for(const Request& request, std::uint64_t bytes) {
  STORMO_ASSIGN_OR_RETURN(const Choice choice, choice_for(request, bytes));
  const Rank root = plan::has_root(goal_of(request.kind)) ? request.root : 0;
  const ProgramKey key{request.kind, root, choice};
  const auto it = programs_.find(key);
  if (it != programs_.end()) return &it->second;
  STORMO_ASSIGN_OR_RETURN(Program program, compile_for(request, key.choice));
  return &programs_.emplace(key, std::move(program)).first->second;
}

Result<Program> Group::compile_for(const Request& request, const Choice& choice) const {
  const bool exclusive = request.kind == OperationKind::kExclusiveScan;
  if (cross_size() == 1 && (exclusive || request.kind == OperationKind::kScan)) {
    return compile_scan(size(), rank(), exclusive);
  }
  const plan::Goal goal{goal_of(request.kind), request.root};
  if (!exclusive) {
    STORMO_ASSIGN_OR_RETURN(const auto schedule, build(choice, goal, parts_.ranks_per_host));
    return compile(schedule, rank(), hosts_);
  }
  // the terms have moved to the next rank: a scan of all ranks but the first
  std::vector<int> hosts = parts_.ranks_per_host;
  if (--hosts.front() == 0) hosts.erase(hosts.begin());
  std::vector<Rank> ranks(static_cast<std::size_t>(size()) - 1);
  std::iota(ranks.begin(), ranks.end(), 1);
  STORMO_ASSIGN_OR_RETURN(const plan::Schedule scan, build(choice, goal, hosts));
  return compile(schedule::on_group(scan, ranks, size(), {.chunks = scan.chunks}), rank(), hosts_);
}

/// An operation failed, and the group with it.
Status Group::give_up(const Operation& operation, Status outcome) {
  const std::string text = to_text(operation);
  if (outcome.code() != Code::kMismatch && !parts_.health->failed()) {
    outcome = outcome.within(fmt::format("rank {} (host {}), {}", rank(), parts_.host, text));
  }
  Status cause = parts_.job_watch ? parts_.job_watch->report(outcome) : outcome;
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
  sink_->record({.lane = lane,
                 .name = to_string(operation.kind),
                 .rank = rank(),
                 .step = -1,
                 .bytes = operation.count * size_of(operation.dtype),
                 .start = start,
                 .end = end});
}

}  // namespace stormo::comm
