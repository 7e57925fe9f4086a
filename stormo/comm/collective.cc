// How a collective runs: the ranks of a host post what they called, meet, compare, and then either
// take small payloads straight from the boards or run the schedule's program on each other's
// memory.
#include <fmt/format.h>

#include <cstring>

#include <stormo/comm/group.h>
#include <stormo/comm/posting.h>
#include <stormo/comm/select.h>

namespace stormo::comm {
namespace {

Combine combine_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin: return Combine::kMin;
    case ReduceOp::kMax: return Combine::kMax;
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kWeightedAverage: break;
  }
  return Combine::kSum;
}

std::uint64_t bytes_of(const Operation& o) { return o.count * size_of(o.dtype); }

/// Bytes that one rank contributes to an operation whose payload is posted whole.
std::uint64_t payload_bytes(const Operation& o, int ranks) {
  const bool gathers = o.kind == OperationKind::kAllGather;
  return gathers ? bytes_of(o) / static_cast<std::uint64_t>(ranks) : bytes_of(o);
}

}  // namespace

Status Group::run(Call call) {
  if (finalized_) return invalid_argument("the group was finalized");
  if (parts_.health->failed()) return status().within(to_text(call.operation));
  call.operation.sequence = ++sequence_;
  activity_.begin(call.operation);
  return conclude(call.operation, run_checked(call));
}

Status Group::run_checked(Call& call) {
  const bool weighted = call.operation.op == ReduceOp::kWeightedAverage;
  double weight_of_all = call.weight;
  if (weighted && cross_size() > 1) {
    STORMO_ASSIGN_OR_RETURN(weight_of_all, total_weight(call));
  }
  const bool inline_payload = fits_inline(call);
  if (local_size() > 1) {
    const TimePoint start = sink_ != nullptr ? std::chrono::steady_clock::now() : TimePoint{};
    STORMO_RETURN_IF_ERROR(meet_and_compare(call, inline_payload));
    if (sink_ != nullptr) {
      record(Lane::kWait, call.operation, start, std::chrono::steady_clock::now());
    }
  }
  const TimePoint start = sink_ != nullptr ? std::chrono::steady_clock::now() : TimePoint{};
  prepare_scales(call, weight_of_all);
  if (inline_payload) {
    finish_inline(call);
  } else {
    map_addresses(call);
    STORMO_RETURN_IF_ERROR(run_program(call));
    copy_back(call);
  }
  if (sink_ != nullptr) {
    record(Lane::kCommunication, call.operation, start, std::chrono::steady_clock::now());
  }
  return {};
}

Status Group::meet_and_compare(Call& call, bool inline_payload) {
  transport::HostGroup& host = *parts_.host_group;
  host.next_operation();
  const Posted mine(host, local_rank());
  mine.note().fingerprint = fingerprint(call.operation);
  mine.posting() = {.weight = call.weight, .operation = call.operation};
  if (inline_payload) {
    post_payload(call);
  } else {
    STORMO_RETURN_IF_ERROR(post_addresses(call));
  }
  STORMO_RETURN_IF_ERROR(host.sync(call.by));
  return compare_postings();
}

/// Every rank of the host sees every posting, so all of them come to the same verdict.
Status Group::compare_postings() const {
  const transport::HostGroup& host = *parts_.host_group;
  const Tag mine = Posted(host, local_rank()).note().fingerprint;
  bool equal = true;
  for (int r = 0; r < host.size(); ++r) equal &= Posted(host, r).note().fingerprint == mine;
  if (equal) return {};
  std::string table = fmt::format("ranks of host {} called different operations", parts_.host);
  if (cross_size() > 1) return {Code::kMismatch, table};  // the coordinator asks all hosts
  for (int r = 0; r < host.size(); ++r) {
    table += fmt::format("\n  rank {}: {}", r, to_text(Posted(host, r).posting().operation));
  }
  return {Code::kMismatch, table};
}

/// Between hosts the weights must be known before anything is scaled: one more small all-reduce.
Result<double> Group::total_weight(const Call& call) {
  double total = call.weight;
  const Buffer buffer = buffer_of(std::span(&total, 1));
  STORMO_RETURN_IF_ERROR(
      run({.operation = describe(OperationKind::kAllReduce, {&buffer, 1}, ReduceOp::kSum, 0),
           .buffers = {&buffer, 1},
           .goal = {plan::GoalKind::kAllReduce, 0},
           .by = call.by}));
  return total;
}

void Group::prepare_scales(const Call& call, double weight_of_all) {
  operands_.how = combine_of(call.operation.op);
  const double each = call.operation.op == ReduceOp::kAverage ? 1.0 / size() : 1.0;
  operands_.scales.assign(operands_.scales.size(), each);
  if (call.operation.op != ReduceOp::kWeightedAverage) return;
  const auto weight_of = [&](std::size_t r) {
    return local_size() == 1 ? call.weight
                             : Posted(*parts_.host_group, static_cast<int>(r)).posting().weight;
  };
  double total = weight_of_all;
  if (cross_size() == 1) {
    total = 0;
    for (std::size_t r = 0; r < operands_.scales.size(); ++r) total += weight_of(r);
  }
  for (std::size_t r = 0; r < operands_.scales.size(); ++r) {
    operands_.scales[r] = total > 0 ? weight_of(r) / total : 0;
  }
}

bool Group::fits_inline(const Call& call) const {
  if (cross_size() > 1 || call.goal.kind == plan::GoalKind::kReduceScatter) return false;
  return payload_bytes(call.operation, size()) <= Posting::kMaxInlineBytes;
}

void Group::post_payload(const Call& call) {
  const std::size_t bytes = payload_bytes(call.operation, size());
  if (bytes == 0) return;
  std::byte* to = Posted(*parts_.host_group, local_rank()).payload(bytes);
  if (call.goal.kind == plan::GoalKind::kAllGather) {
    const auto* mine = static_cast<const std::byte*>(call.buffers[0].data) +
                       bytes * static_cast<std::size_t>(rank());
    std::memcpy(to, mine, bytes);
    return;
  }
  if (call.goal.kind == plan::GoalKind::kBroadcast && call.goal.root != rank()) return;
  for (const Buffer& b : call.buffers) {
    if (b.count > 0) std::memcpy(to, b.data, b.bytes());
    to += b.bytes();
  }
}

void Group::finish_inline(const Call& call) {
  if (alone()) return finish_alone(call);
  const std::size_t bytes = payload_bytes(call.operation, size());
  if (bytes == 0) return;
  const auto payload_of = [&](int r) { return Posted(*parts_.host_group, r).payload(bytes); };
  if (call.goal.kind == plan::GoalKind::kAllGather) {
    auto* to = static_cast<std::byte*>(call.buffers[0].data);
    for (int r = 0; r < size(); ++r, to += bytes) std::memcpy(to, payload_of(r), bytes);
    return;
  }
  std::size_t offset = 0;
  for (const Buffer& b : call.buffers) {
    if (call.goal.kind == plan::GoalKind::kBroadcast) {
      if (b.count > 0) std::memcpy(b.data, payload_of(call.goal.root) + offset, b.bytes());
    } else {
      sources_.clear();
      for (int r = 0; r < size(); ++r) {
        const double scale = operands_.scales[static_cast<std::size_t>(r)];
        if (scale != 0) sources_.push_back({payload_of(r) + offset, scale});
      }
      void* to = b.data;
      reduce(b.dtype, operands_.how, sources_, {&to, 1}, b.count);
    }
    offset += b.bytes();
  }
}

/// A world of one: everything is already where it belongs, but a weight of zero counts as nothing.
void Group::finish_alone(const Call& call) {
  if (operands_.scales[0] != 0) return;
  for (const Buffer& b : call.buffers) {
    void* to = b.data;
    reduce(b.dtype, operands_.how, {}, {&to, 1}, b.count);
  }
}

/// Posts where this rank's buffers lie. Private ones get a copy in the arena; what only others
/// write is not copied in.
Status Group::post_addresses(const Call& call) {
  transport::Arena& memory = arena();
  auto& mine = operands_.memory[static_cast<std::size_t>(local_rank())];
  std::size_t private_bytes = 0;
  for (const Buffer& b : call.buffers) {
    if (!memory.contains(b.data)) private_bytes += (b.bytes() + 63) / 64 * 64;
  }
  if (private_bytes > bounce_bytes_) {
    memory.deallocate(bounce_);
    bounce_ = static_cast<std::byte*>(memory.allocate(private_bytes));
    bounce_bytes_ = bounce_ != nullptr ? private_bytes : 0;
    if (bounce_ == nullptr) {
      return {Code::kExhausted,
              fmt::format("the arena of rank {} has no room for a copy of {} bytes", rank(),
                          private_bytes)};
    }
  }
  const bool copy_in = call.goal.kind != plan::GoalKind::kBroadcast || call.goal.root == rank();
  auto* offsets = reinterpret_cast<std::uint64_t*>(Posted(*parts_.host_group, local_rank()).room());
  mine.clear();
  std::byte* next = bounce_;
  for (const Buffer& b : call.buffers) {
    auto* data = static_cast<std::byte*>(b.data);
    if (!memory.contains(b.data)) {
      if (copy_in && b.count > 0) std::memcpy(next, data, b.bytes());
      data = next;
      next += (b.bytes() + 63) / 64 * 64;
    }
    mine.push_back(data);
    *offsets++ = memory.offset_of(data);
  }
  return {};
}

void Group::map_addresses(const Call& call) {
  operands_.dtype = call.operation.dtype;
  operands_.tag = fingerprint(call.operation);
  operands_.layout.assign(call.buffers);
  if (local_size() == 1) {
    operands_.memory[0].clear();
    for (const Buffer& b : call.buffers) {
      operands_.memory[0].push_back(static_cast<std::byte*>(b.data));
    }
    return;
  }
  const transport::HostGroup& host = *parts_.host_group;
  for (int r = 0; r < host.size(); ++r) {
    if (r == local_rank()) continue;
    const auto* offsets = reinterpret_cast<const std::uint64_t*>(Posted(host, r).room());
    auto& theirs = operands_.memory[static_cast<std::size_t>(r)];
    theirs.resize(call.buffers.size());
    for (std::size_t b = 0; b < theirs.size(); ++b) theirs[b] = host.address(r, offsets[b]);
  }
}

Status Group::run_program(const Call& call) {
  if (alone()) return {};
  const Executor executor{parts_.wire.get(),
                          [this](Deadline by) { return parts_.host_group->sync(by); }, &staging_};
  return execute(program_for(call.goal), operands_, executor, call.by);
}

void Group::copy_back(const Call& call) {
  if (local_size() == 1) return;
  const auto& mine = operands_.memory[static_cast<std::size_t>(local_rank())];
  for (std::size_t b = 0; b < call.buffers.size(); ++b) {
    const Buffer& buffer = call.buffers[b];
    if (mine[b] != buffer.data && buffer.count > 0) {
      std::memcpy(buffer.data, mine[b], buffer.bytes());
    }
  }
}

const Program& Group::program_for(const plan::Goal& goal) {
  const auto it = programs_.find(goal);
  if (it != programs_.end()) return it->second;
  return programs_.emplace(goal, compile(select(goal, parts_.ranks_per_host), rank(), hosts_))
      .first->second;
}

Status Group::conclude(const Operation& operation, Status outcome) {
  if (outcome.ok()) {
    activity_.end();
    return {};
  }
  const std::string text = to_text(operation);
  if (outcome.code() != Code::kMismatch && !parts_.health->failed()) {
    outcome = outcome.within(fmt::format("rank {} (host {}), {}", rank(), parts_.host, text));
  }
  Status cause = coordinator_ ? coordinator_->report(outcome) : outcome;
  parts_.health->fail(cause);
  if (!coordinator_) cause = parts_.health->status();
  {
    const std::lock_guard lock(mutex_);
    if (first_cause_.ok()) first_cause_ = cause;
  }
  return cause.within(text);
}

Status Group::status() const {
  const std::lock_guard lock(mutex_);
  return first_cause_.ok() ? parts_.health->status() : first_cause_;
}

void Group::record(Lane lane, const Operation& operation, TimePoint start, TimePoint end) {
  if (sink_ == nullptr) return;
  sink_->record({.lane = lane,
                 .name = to_string(operation.kind),
                 .rank = rank(),
                 .step = -1,
                 .bytes = bytes_of(operation),
                 .start = start,
                 .end = end});
}

}  // namespace stormo::comm
