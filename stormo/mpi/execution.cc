#include <stormo/mpi/execution.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include <stormo/base/check.h>
#include <stormo/comm/kernels/kernels.h>

namespace stormo::mpi {

using comm::Buffer;
using comm::Operation;
using comm::OperationKind;
using comm::ReduceOp;

namespace {

/// Buffers are brought together up to so many bytes: a call of MPI costs more than copying them.
constexpr std::uint64_t kPackedBytes = 256 << 10;

void append(std::vector<std::byte>& to, const Buffer& b) {
  const auto* data = static_cast<const std::byte*>(b.data);
  to.insert(to.end(), data, data + b.bytes());
}

}  // namespace

// The fingerprints are all equal when the largest is the smallest.
Status Execution::compare() {
  const Tag mine = comm::fingerprint(call_.operation);
  Link::Words words{mine, ~mine};
  STORMO_RETURN_IF_ERROR(link_.maximum(words, call_.by));
  return words[0] == ~words[1] ? ok_status() : all_called();
}

/// The table of what all ranks called, as a failure. Every rank has come to the same verdict.
Status Execution::all_called() {
  std::vector<Operation>& all = scratch_.operations;
  all.assign(static_cast<std::size_t>(link_.size()) + 1, call_.operation);
  STORMO_RETURN_IF_ERROR(link_.run("MPI_Iallgather", call_.by, [&](MPI_Request* request) {
    return MPI_Iallgather(&all.back(), sizeof(Operation), MPI_BYTE, all.data(), sizeof(Operation),
                          MPI_BYTE, link_.collectives(), request);
  }));
  std::string table = "ranks called different operations";
  for (Rank r = 0; r < link_.size(); ++r) {
    table += fmt::format("\n  rank {}: {}", r, to_text(all[static_cast<std::size_t>(r)]));
  }
  return {Code::kMismatch, table};
}

Status Execution::collective() {
  if (r_.kind == OperationKind::kBarrier || r_.kind == OperationKind::kFinalize ||
      r_.kind == OperationKind::kSubgroup) {
    // comparing is a barrier
    if (options_.compare_calls) return {};
    return link_.run("MPI_Ibarrier", call_.by, [&](MPI_Request* request) {
      return MPI_Ibarrier(link_.collectives(), request);
    });
  }
  const DType dtype = call_.operation.dtype;
  STORMO_ASSIGN_OR_RETURN(type_, type_of(link_.library(), dtype));
  if (comm::reduces(r_.kind)) {
    STORMO_ASSIGN_OR_RETURN(Arithmetic arithmetic,
                            Arithmetic::of(link_.library(), dtype, r_.reduction));
    arithmetic_.emplace(std::move(arithmetic));
    STORMO_RETURN_IF_ERROR(scale());
  }
  const Status outcome = comm::in_place(r_.kind) ? in_place() : parts();
  if (link_.abandoned() && arithmetic_) arithmetic_->abandon();
  if (!outcome.ok() || !arithmetic_ || r_.reduction.op != ReduceOp::kUser) return outcome;
  return agree_on_outcome();
}

/// A user's reduction that has thrown on one rank leaves wrong numbers on any.
Status Execution::agree_on_outcome() {
  const Status mine = arithmetic_->outcome();
  Link::Words failed{mine.ok() ? 0 : static_cast<std::uint64_t>(link_.rank()) + 1, 0};
  STORMO_RETURN_IF_ERROR(link_.maximum(failed, call_.by));
  if (!mine.ok() || failed[0] == 0) return mine;
  return {Code::kException, fmt::format("the reduction has thrown on rank {}", failed[0] - 1)};
}

/// Averages become sums of scaled terms.
Status Execution::scale() {
  STORMO_ASSIGN_OR_RETURN(const double factor, own_factor());
  if (factor == 1) return {};
  for (const Buffer& b : r_.in) {
    const comm::Operand term[] = {{b.data, factor}};
    void* const to[] = {b.data};
    // a rank of weight 0 is not read: it may hold anything
    const std::span<const comm::Operand> terms(term, factor == 0 ? 0 : 1);
    comm::reduce(b.dtype, comm::Combine::kSum, terms, to, b.count);
  }
  return {};
}

Result<double> Execution::own_factor() {
  if (r_.reduction.op == ReduceOp::kAverage) return 1.0 / link_.size();
  if (r_.reduction.op != ReduceOp::kWeightedAverage) return 1.0;
  double& total = scratch_.weight = r_.weight;
  STORMO_RETURN_IF_ERROR(link_.run("MPI_Iallreduce", call_.by, [&](MPI_Request* request) {
    return MPI_Iallreduce(MPI_IN_PLACE, &total, 1, MPI_DOUBLE, MPI_SUM, link_.collectives(),
                          request);
  }));
  return total > 0 ? r_.weight / total : 0.0;
}

Status Execution::in_place() {
  const auto buffers = r_.in;
  for (std::size_t i = 0; i < buffers.size();) {
    std::uint64_t bytes = 0;
    std::size_t end = i;
    while (end < buffers.size() && bytes + buffers[end].bytes() <= kPackedBytes) {
      bytes += buffers[end++].bytes();
    }
    if (end > i + 1) {
      STORMO_RETURN_IF_ERROR(packed(buffers.subspan(i, end - i)));
      i = end;
    } else {
      const Buffer& b = buffers[i++];
      STORMO_RETURN_IF_ERROR(whole(static_cast<std::byte*>(b.data), b.count));
    }
  }
  return {};
}

Status Execution::packed(std::span<const Buffer> buffers) {
  std::vector<std::byte>& stage = scratch_.stage;
  stage.clear();
  for (const Buffer& b : buffers) append(stage, b);
  STORMO_RETURN_IF_ERROR(whole(stage.data(), static_cast<std::int64_t>(stage.size()) / width()));
  const std::byte* from = stage.data();
  for (const Buffer& b : buffers) {
    if (b.count > 0) std::memcpy(b.data, from, b.bytes());
    from += b.bytes();
  }
  return {};
}

Status Execution::whole(std::byte* data, std::int64_t count) {
  for (std::int64_t begin = 0; begin < count; begin += count_per_call()) {
    const std::int64_t n = std::min(count_per_call(), count - begin);
    STORMO_RETURN_IF_ERROR(piece(data + begin * width(), length(n)));
  }
  return {};
}

Status Execution::piece(std::byte* data, int count) {
  const MPI_Comm ranks = link_.collectives();
  switch (r_.kind) {
    case OperationKind::kAllReduce:
      return link_.run("MPI_Iallreduce", call_.by, [&](MPI_Request* request) {
        return MPI_Iallreduce(MPI_IN_PLACE, data, count, type_, arithmetic_->op(), ranks, request);
      });
    case OperationKind::kReduce:
      return link_.run("MPI_Ireduce", call_.by, [&](MPI_Request* request) {
        const bool is_root = link_.rank() == r_.root;
        return MPI_Ireduce(is_root ? MPI_IN_PLACE : data, is_root ? data : nullptr, count, type_,
                           arithmetic_->op(), r_.root, ranks, request);
      });
    case OperationKind::kBroadcast:
      return link_.run("MPI_Ibcast", call_.by, [&](MPI_Request* request) {
        return MPI_Ibcast(data, count, type_, r_.root, ranks, request);
      });
    case OperationKind::kScan:
      return link_.run("MPI_Iscan", call_.by, [&](MPI_Request* request) {
        return MPI_Iscan(MPI_IN_PLACE, data, count, type_, arithmetic_->op(), ranks, request);
      });
    case OperationKind::kExclusiveScan: return exclusive_scan(data, count);
    case OperationKind::kAllGather:
    case OperationKind::kReduceScatter:
    case OperationKind::kGather:
    case OperationKind::kScatter:
    case OperationKind::kAllToAll:
    case OperationKind::kSend:
    case OperationKind::kReceive:
    case OperationKind::kBarrier:
    case OperationKind::kFinalize:
    case OperationKind::kSubgroup: break;
  }
  STORMO_CHECK(false, "only collectives in place have pieces");
  return {};
}

/// MPI leaves rank 0's outcome open; ours is what it was.
Status Execution::exclusive_scan(std::byte* data, int count) {
  scratch_.aside.assign(data, data + count * width());
  STORMO_RETURN_IF_ERROR(link_.run("MPI_Iexscan", call_.by, [&](MPI_Request* request) {
    return MPI_Iexscan(scratch_.aside.data(), data, count, type_, arithmetic_->op(),
                       link_.collectives(), request);
  }));
  if (link_.rank() == 0) std::ranges::copy(scratch_.aside, data);
  return {};
}

}  // namespace stormo::mpi
