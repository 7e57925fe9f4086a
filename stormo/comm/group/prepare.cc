// What a call needs besides addresses and weights: it is found once for calls of the same form.
#include <fmt/format.h>

#include <numeric>
#include <vector>

#include <stormo/comm/group/group.h>
#include <stormo/schedule/compose.h>

namespace stormo::comm {
namespace {

Partition partition_of(const Request& r, int chunks, std::int64_t count, Rank me, int size) {
  if (r.kind == OperationKind::kAllToAll) {
    if (!r.counts.empty()) return Partition::pairs(chunks, me, r.counts, r.out_counts);
    const std::vector<std::int64_t> blocks(static_cast<std::size_t>(size), count / size);
    return Partition::pairs(chunks, me, blocks, blocks);
  }
  return r.counts.empty() ? Partition::even(chunks, count) : Partition::by_rank(chunks, r.counts);
}

}  // namespace

void PreparedCall::keep_for(const Request& request) {
  kept_ = is_plain(request);
  num_in_ = request.in.size();
  counts_.clear();
  for (const Buffer& b : request.in) counts_.push_back(b.count);
  if (!in_place(request.kind)) {
    for (const Buffer& b : request.out) counts_.push_back(b.count);
  }
  const auto& some = request.in.empty() ? request.out : request.in;
  if (!some.empty()) dtype_ = some.front().dtype;
}

/// `of_whole`: the program of the operation of which `request` is a piece.
Status Group::prepare(const Request& request, PreparedCall& call, const Program* of_whole) {
  call.forget();
  call.operation = describe(request, size());
  call.form = fingerprint(call.operation);
  STORMO_RETURN_IF_ERROR(prepare_collective(request, call, of_whole));
  call.keep_for(request);
  return {};
}

Status Group::prepare_collective(const Request& request, PreparedCall& call,
                                 const Program* of_whole) {
  call.posted_whole = of_whole == nullptr && posts_whole(request);
  call.can_be_cut = false;
  if (call.posted_whole) {
    call.posted_bytes = inline_.contribution(request);
    call.sources = inline_.sources(request);
  } else {
    call.program = of_whole;
    if (of_whole == nullptr) STORMO_RETURN_IF_ERROR(choose_program(request, call));
    describe_operands(request, call);
  }
  call.operands.kernel = kernel_of(call.operation.dtype);
  call.operands.how = combine_of(call.operation.op);
  call.operands.user = request.reduction.user.get();
  const double each = call.operation.op == ReduceOp::kAverage ? 1.0 / size() : 1.0;
  call.operands.local_rank = local_rank();
  call.operands.memory.resize(static_cast<std::size_t>(local_size()));
  call.operands.scales.assign(static_cast<std::size_t>(local_size()), each);
  return {};
}

Status Group::choose_program(const Request& request, PreparedCall& call) {
  const std::uint64_t bytes = call.operation.count * size_of(call.operation.dtype);
  STORMO_ASSIGN_OR_RETURN(const Choice choice, choice_for(request, bytes));
  STORMO_ASSIGN_OR_RETURN(call.program, program_for(request, choice));
  call.can_be_cut = cross_size() == 1 && choice.builder->by_rank && request.in.size() == 1 &&
                    bytes > MemoryMap::kPiece;
  return {};
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

Result<const Program*> Group::program_for(const Request& request, Choice choice) {
  if (in_one_pass(request)) choice = {};
  const Rank root = plan::has_root(goal_of(request.kind)) ? request.root : 0;
  const ProgramKey key{request.kind, root, choice};
  const auto it = programs_.find(key);
  if (it != programs_.end()) return &it->second;
  STORMO_ASSIGN_OR_RETURN(Program program, compile_for(request, key.choice));
  return &programs_.emplace(key, std::move(program)).first->second;
}

Result<Program> Group::compile_for(const Request& request, const Choice& choice) const {
  const bool exclusive = request.kind == OperationKind::kExclusiveScan;
  if (in_one_pass(request)) return compile_scan(size(), rank(), exclusive);
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

}  // namespace stormo::comm
