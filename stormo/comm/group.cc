#include <stormo/comm/group.h>

#include <fmt/format.h>

#include <cstring>

#include <stormo/comm/posting.h>
#include <stormo/comm/select.h>

namespace stormo::comm {
namespace {

constexpr Duration kGoodbye = std::chrono::seconds(2);

/// Operations on buffers that outlive the call: asynchronous forms own the list.
std::vector<Buffer> owned(std::span<const Buffer> buffers) {
  return {buffers.begin(), buffers.end()};
}

Buffer slice(const Buffer& whole, Rank rank, std::int64_t count) {
  Buffer part = whole;
  part.data = static_cast<std::byte*>(whole.data) +
              static_cast<std::size_t>(rank * count) * size_of(whole.dtype);
  part.count = count;
  return part;
}

}  // namespace

Group::Group(Parts parts) : parts_(std::move(parts)), hosts_(HostMap::of(parts_.ranks_per_host)) {
  const auto n = static_cast<std::size_t>(local_size());
  operands_.local_rank = local_rank();
  operands_.memory.resize(n);
  operands_.scales.assign(n, 1);
}

Group::~Group() {
  if (!finalized_) parts_.health->fail({Code::kCancelled, "the group was destroyed"});
}

void Group::set_coordinator(std::unique_ptr<Coordinator> coordinator) {
  coordinator_ = std::move(coordinator);
}

std::string Group::activity() const {
  const auto [operation, running] = activity_.snapshot();
  const std::lock_guard lock(mutex_);
  const std::string section = section_.empty() ? "" : section_ + ", ";
  if (running) return section + to_text(operation);
  if (operation.sequence == 0) return section + "no operation yet";
  return section + "computing after " + to_text(operation);
}

void Group::set_section(std::string_view text) {
  const std::lock_guard lock(mutex_);
  section_ = text;
}

std::uint64_t Group::bytes_sent() const {
  return parts_.wire ? parts_.wire->counters().payload_bytes_sent : 0;
}

std::string Group::algorithm(plan::GoalKind goal) const {
  return select({goal, 0}, parts_.ranks_per_host).name;
}

void Group::fail(Status cause) {
  if (coordinator_) {
    const Status first = coordinator_->report(cause);
    static_cast<void>(first);  // every later call returns it
  }
  parts_.health->fail(std::move(cause));
}

Status Group::finalize(Deadline by) {
  if (finalized_) return {};
  STORMO_RETURN_IF_ERROR(
      lane_.run([this, by] { return do_barrier(OperationKind::kFinalize, by); }, by));
  finalized_ = true;
  parts_.host_group->leave();
  if (coordinator_) {
    // the process that hosts the store may already be gone: everybody has finished well
    const Status said = coordinator_->goodbye(Deadline::after(kGoodbye));
    static_cast<void>(said);
  }
  return {};
}

Status Group::check_buffers(std::span<const Buffer> buffers, OperationKind kind,
                            ReduceOp op) const {
  for (const Buffer& b : buffers) {
    if (b.device.kind != Device::Kind::kCpu) {
      return invalid_argument(
          fmt::format("{}: only CPU buffers; copy to the CPU first", to_string(kind)));
    }
    if (b.count < 0 || (b.count > 0 && b.data == nullptr)) {
      return invalid_argument(
          fmt::format("{}: a buffer of {} elements at {}", to_string(kind), b.count, b.data));
    }
    if (b.dtype != buffers.front().dtype) {
      return invalid_argument(
          fmt::format("{}: buffers of {} and {} in one call; one call per dtype", to_string(kind),
                      to_string(buffers.front().dtype), to_string(b.dtype)));
    }
    const bool floating =
        b.dtype == DType::kFloat32 || b.dtype == DType::kFloat64 || b.dtype == DType::kBFloat16;
    const bool reduces = kind == OperationKind::kAllReduce || kind == OperationKind::kReduceScatter;
    if (reduces && !floating && (op == ReduceOp::kAverage || op == ReduceOp::kWeightedAverage)) {
      return invalid_argument(fmt::format("{}: {} of {}; integers have sum, min and max",
                                          to_string(kind), to_string(op), to_string(b.dtype)));
    }
  }
  return {};
}

Status Group::do_all_reduce(std::span<const Buffer> buffers, ReduceOp op, double weight,
                            Deadline by) {
  STORMO_RETURN_IF_ERROR(check_buffers(buffers, OperationKind::kAllReduce, op));
  if (weight < 0) return invalid_argument(fmt::format("all_reduce: weight {} is negative", weight));
  for (std::size_t i = 0; i == 0 || i < buffers.size(); i += Posting::kMaxBuffers) {
    const auto part = buffers.subspan(i, std::min(Posting::kMaxBuffers, buffers.size() - i));
    STORMO_RETURN_IF_ERROR(run({.operation = describe(OperationKind::kAllReduce, part, op, 0),
                                .buffers = part,
                                .goal = {plan::GoalKind::kAllReduce, 0},
                                .weight = weight,
                                .by = by}));
  }
  return {};
}

Status Group::do_broadcast(std::span<const Buffer> buffers, Rank root, Deadline by) {
  STORMO_RETURN_IF_ERROR(check_buffers(buffers, OperationKind::kBroadcast, ReduceOp::kSum));
  if (root < 0 || root >= size()) {
    return invalid_argument(fmt::format("broadcast: root {} of {} ranks", root, size()));
  }
  for (std::size_t i = 0; i == 0 || i < buffers.size(); i += Posting::kMaxBuffers) {
    const auto part = buffers.subspan(i, std::min(Posting::kMaxBuffers, buffers.size() - i));
    STORMO_RETURN_IF_ERROR(
        run({.operation = describe(OperationKind::kBroadcast, part, ReduceOp::kSum, root),
             .buffers = part,
             .goal = {plan::GoalKind::kBroadcast, root},
             .by = by}));
  }
  return {};
}

Status Group::do_all_gather(Buffer in, Buffer out, Deadline by) {
  const Buffer both[] = {in, out};
  STORMO_RETURN_IF_ERROR(check_buffers(both, OperationKind::kAllGather, ReduceOp::kSum));
  if (out.count != in.count * size()) {
    return invalid_argument(
        fmt::format("all_gather: {} elements from each of {} ranks do not fill an "
                    "output of {}",
                    in.count, size(), out.count));
  }
  const Buffer mine = slice(out, rank(), in.count);
  if (mine.data != in.data && in.count > 0) std::memcpy(mine.data, in.data, in.bytes());
  return run({.operation = describe(OperationKind::kAllGather, {&out, 1}, ReduceOp::kSum, 0),
              .buffers = {&out, 1},
              .goal = {plan::GoalKind::kAllGather, 0},
              .by = by});
}

Status Group::do_reduce_scatter(Buffer in, Buffer out, ReduceOp op, Deadline by) {
  const Buffer both[] = {in, out};
  STORMO_RETURN_IF_ERROR(check_buffers(both, OperationKind::kReduceScatter, op));
  if (op == ReduceOp::kWeightedAverage) {
    return invalid_argument("reduce_scatter: no weighted average; use all_reduce, or scale first");
  }
  if (in.count != out.count * size()) {
    return invalid_argument(
        fmt::format("reduce_scatter: an input of {} elements is not {} outputs of "
                    "{}",
                    in.count, size(), out.count));
  }
  STORMO_RETURN_IF_ERROR(run({.operation = describe(OperationKind::kReduceScatter, {&in, 1}, op, 0),
                              .buffers = {&in, 1},
                              .goal = {plan::GoalKind::kReduceScatter, 0},
                              .by = by}));
  const Buffer mine = slice(in, rank(), out.count);
  if (mine.data != out.data && out.count > 0) std::memcpy(out.data, mine.data, out.bytes());
  return {};
}

Status Group::do_barrier(OperationKind kind, Deadline by) {
  // between hosts a barrier is an all-reduce in which every chunk has an element, so that every
  // message is really sent
  const plan::Goal goal{plan::GoalKind::kAllReduce, 0};
  std::vector<std::uint8_t> token;
  if (cross_size() > 1) token.resize(static_cast<std::size_t>(program_for(goal).chunks));
  const Buffer buffer = buffer_of(std::span(token));
  const std::span<const Buffer> buffers(&buffer, token.empty() ? 0 : 1);
  return run({.operation = describe(kind, buffers, ReduceOp::kMax, 0),
              .buffers = buffers,
              .goal = goal,
              .by = by});
}

Status Group::do_message(OperationKind kind, Buffer data, Rank peer, std::uint32_t tag,
                         Deadline by) {
  STORMO_RETURN_IF_ERROR(check_buffers({&data, 1}, kind, ReduceOp::kSum));
  if (peer < 0 || peer >= size() || peer == rank()) {
    return invalid_argument(fmt::format("{}: rank {} has no peer {} in a group of {}",
                                        to_string(kind), rank(), peer, size()));
  }
  Operation operation = describe(kind, {&data, 1}, ReduceOp::kSum, peer);
  operation.tag = tag;
  if (parts_.health->failed()) return status().within(to_text(operation));
  activity_.begin(operation);
  const auto index = static_cast<std::size_t>(peer);
  const bool here = hosts_.host[index] == cross_rank();
  transport::Transport& link = here ? *parts_.local : *parts_.wire;
  const Rank to = here ? hosts_.local[index] : peer;
  const auto* bytes = static_cast<std::byte*>(data.data);
  const TimePoint start = std::chrono::steady_clock::now();
  const Status outcome = kind == OperationKind::kSend
                             ? link.send(to, fingerprint(operation), {bytes, data.bytes()}, by)
                             : link.recv(to, fingerprint(operation),
                                         {static_cast<std::byte*>(data.data), data.bytes()}, by);
  record(Lane::kCommunication, operation, start, std::chrono::steady_clock::now());
  return conclude(operation, outcome);
}

// The two forms of every operation.

Work Group::all_reduce_async(std::span<const Buffer> buffers, ReduceOp op, double weight) {
  return lane_.submit([this, list = owned(buffers), op, weight] {
    return do_all_reduce(list, op, weight, Deadline::never());
  });
}
Work Group::broadcast_async(std::span<const Buffer> buffers, Rank root) {
  return lane_.submit(
      [this, list = owned(buffers), root] { return do_broadcast(list, root, Deadline::never()); });
}
Work Group::all_gather_async(Buffer in, Buffer out) {
  return lane_.submit([=, this] { return do_all_gather(in, out, Deadline::never()); });
}
Work Group::reduce_scatter_async(Buffer in, Buffer out, ReduceOp op) {
  return lane_.submit([=, this] { return do_reduce_scatter(in, out, op, Deadline::never()); });
}
Work Group::barrier_async() {
  return lane_.submit([this] { return do_barrier(OperationKind::kBarrier, Deadline::never()); });
}
Work Group::send_async(Buffer data, Rank to, std::uint32_t tag) {
  return lane_.submit(
      [=, this] { return do_message(OperationKind::kSend, data, to, tag, Deadline::never()); });
}
Work Group::recv_async(Buffer data, Rank from, std::uint32_t tag) {
  return lane_.submit([=, this] {
    return do_message(OperationKind::kReceive, data, from, tag, Deadline::never());
  });
}

Status Group::all_reduce(std::span<const Buffer> buffers, ReduceOp op, double weight, Deadline by) {
  return lane_.run([=, this] { return do_all_reduce(buffers, op, weight, by); }, by);
}
Status Group::broadcast(std::span<const Buffer> buffers, Rank root, Deadline by) {
  return lane_.run([=, this] { return do_broadcast(buffers, root, by); }, by);
}
Status Group::all_gather(Buffer in, Buffer out, Deadline by) {
  return lane_.run([=, this] { return do_all_gather(in, out, by); }, by);
}
Status Group::reduce_scatter(Buffer in, Buffer out, ReduceOp op, Deadline by) {
  return lane_.run([=, this] { return do_reduce_scatter(in, out, op, by); }, by);
}
Status Group::barrier(Deadline by) {
  return lane_.run([=, this] { return do_barrier(OperationKind::kBarrier, by); }, by);
}
Status Group::send(Buffer data, Rank to, std::uint32_t tag, Deadline by) {
  return lane_.run([=, this] { return do_message(OperationKind::kSend, data, to, tag, by); }, by);
}
Status Group::recv(Buffer data, Rank from, std::uint32_t tag, Deadline by) {
  return lane_.run([=, this] { return do_message(OperationKind::kReceive, data, from, tag, by); },
                   by);
}

}  // namespace stormo::comm
