// Operations whose whole lies in rank order. What one call of MPI takes, MPI's collectives do; what
// is longer goes as messages in pieces, because their displacements have 32 bits.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include <stormo/base/check.h>
#include <stormo/mpi/execution.h>

namespace stormo::mpi {

using comm::Buffer;
using comm::OperationKind;

namespace {

void copy_bytes(const void* from, std::byte* to, std::int64_t bytes) {
  if (from != to && bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

/// Also true of an empty buffer in the other: MPI refuses equal addresses of any length.
bool overlap(const Buffer& a, const Buffer& b) {
  const auto* x = static_cast<const std::byte*>(a.data);
  const auto* y = static_cast<const std::byte*>(b.data);
  return x == y || (x < y + b.bytes() && y < x + a.bytes());
}

}  // namespace

std::int64_t Execution::count_of(Rank r) const {
  if (!r_.counts.empty()) return r_.counts[static_cast<std::size_t>(r)];
  return static_cast<std::int64_t>(call_.operation.count) / link_.size();
}

std::int64_t Execution::begin_of(Rank r) const {
  if (r_.counts.empty()) return count_of(0) * r;
  return std::accumulate(r_.counts.begin(), r_.counts.begin() + r, std::int64_t{0});
}

std::byte* Execution::place_of(const Buffer& whole, Rank r) const {
  return static_cast<std::byte*>(whole.data) + begin_of(r) * width();
}

Execution::Block Execution::part_of(const Buffer& whole, Rank r) const {
  return {r, place_of(whole, r), count_of(r) * width()};
}

/// As MPI's variable operations want them; the whole fits one call.
void Execution::list_parts() {
  scratch_.counts.clear();
  scratch_.begins.clear();
  for (Rank r = 0; r < link_.size(); ++r) {
    scratch_.counts.push_back(length(count_of(r)));
    scratch_.begins.push_back(length(begin_of(r)));
  }
}

bool Execution::fits_one_call() const {
  return static_cast<std::int64_t>(call_.operation.count) <= count_per_call();
}

Status Execution::parts() {
  if (r_.kind == OperationKind::kAllToAll) return all_to_all();
  if (call_.operation.count == 0) return {};
  if (!r_.counts.empty() && fits_one_call()) list_parts();
  const bool to_root = plan::has_root(comm::goal_of(r_.kind));
  switch (comm::form_of(r_.kind)) {
    case comm::BufferForm::kGathers: return to_root ? gather() : all_gather();
    case comm::BufferForm::kScatters: return to_root ? scatter() : reduce_scatter();
    case comm::BufferForm::kExchanges:
    case comm::BufferForm::kInPlace: break;
  }
  STORMO_CHECK(false, "only collectives with parts come here");
  return {};
}

Status Execution::all_gather() {
  const Buffer& in = r_.in.front();
  const Buffer& out = r_.out.front();
  const Block mine = part_of(out, link_.rank());
  copy_bytes(in.data, mine.data, mine.bytes);
  if (!fits_one_call()) {
    std::vector<Block> sends;
    std::vector<Block> receives;
    for (Rank r = 0; r < link_.size(); ++r) {
      sends.push_back({r, mine.data, mine.bytes});
      receives.push_back(part_of(out, r));
    }
    return exchange(sends, receives);
  }
  const MPI_Comm ranks = link_.collectives();
  if (r_.counts.empty()) {
    return link_.run("MPI_Iallgather", call_.by, [&](MPI_Request* request) {
      return MPI_Iallgather(MPI_IN_PLACE, 0, type_, out.data, length(in.count), type_, ranks,
                            request);
    });
  }
  return link_.run("MPI_Iallgatherv", call_.by, [&](MPI_Request* request) {
    return MPI_Iallgatherv(MPI_IN_PLACE, 0, type_, out.data, scratch_.counts.data(),
                           scratch_.begins.data(), type_, ranks, request);
  });
}

Status Execution::gather() {
  const bool is_root = link_.rank() == r_.root;
  const Buffer& in = r_.in.front();
  const Buffer out = is_root ? r_.out.front() : Buffer{};
  if (is_root) copy_bytes(in.data, place_of(out, r_.root), static_cast<std::int64_t>(in.bytes()));
  if (!fits_one_call()) {
    const Block part{r_.root, static_cast<std::byte*>(in.data),
                     static_cast<std::int64_t>(in.bytes())};
    if (!is_root) return exchange({&part, 1}, {});
    std::vector<Block> receives;
    for (Rank r = 0; r < link_.size(); ++r) receives.push_back(part_of(out, r));
    return exchange({}, receives);
  }
  const void* from = is_root ? MPI_IN_PLACE : in.data;
  const MPI_Comm ranks = link_.collectives();
  if (r_.counts.empty()) {
    return link_.run("MPI_Igather", call_.by, [&](MPI_Request* request) {
      return MPI_Igather(from, length(in.count), type_, out.data, length(in.count), type_, r_.root,
                         ranks, request);
    });
  }
  return link_.run("MPI_Igatherv", call_.by, [&](MPI_Request* request) {
    return MPI_Igatherv(from, length(in.count), type_, out.data, scratch_.counts.data(),
                        scratch_.begins.data(), type_, r_.root, ranks, request);
  });
}

Status Execution::scatter() {
  const bool is_root = link_.rank() == r_.root;
  const Buffer in = is_root ? r_.in.front() : Buffer{};
  const Buffer& out = r_.out.front();
  auto* to = static_cast<std::byte*>(out.data);
  if (is_root) copy_bytes(place_of(in, r_.root), to, static_cast<std::int64_t>(out.bytes()));
  if (!fits_one_call()) {
    const Block part{r_.root, to, static_cast<std::int64_t>(out.bytes())};
    if (!is_root) return exchange({}, {&part, 1});
    std::vector<Block> sends;
    for (Rank r = 0; r < link_.size(); ++r) sends.push_back(part_of(in, r));
    return exchange(sends, {});
  }
  void* into = is_root ? MPI_IN_PLACE : out.data;
  const MPI_Comm ranks = link_.collectives();
  if (r_.counts.empty()) {
    return link_.run("MPI_Iscatter", call_.by, [&](MPI_Request* request) {
      return MPI_Iscatter(in.data, length(out.count), type_, into, length(out.count), type_,
                          r_.root, ranks, request);
    });
  }
  return link_.run("MPI_Iscatterv", call_.by, [&](MPI_Request* request) {
    return MPI_Iscatterv(in.data, scratch_.counts.data(), scratch_.begins.data(), type_, into,
                         length(out.count), type_, r_.root, ranks, request);
  });
}

Status Execution::reduce_scatter() {
  const Buffer& in = r_.in.front();
  const Buffer& out = r_.out.front();
  auto* to = static_cast<std::byte*>(out.data);
  if (!fits_one_call()) {
    // part after part is reduced to its owner, where it lies
    for (Rank root = 0; root < link_.size(); ++root) {
      for (std::int64_t begin = 0; begin < count_of(root); begin += count_per_call()) {
        const int n = length(std::min(count_per_call(), count_of(root) - begin));
        std::byte* data = place_of(in, root) + begin * width();
        const bool mine = root == link_.rank();
        STORMO_RETURN_IF_ERROR(link_.run("MPI_Ireduce", call_.by, [&](MPI_Request* request) {
          return MPI_Ireduce(mine ? MPI_IN_PLACE : data, mine ? data : nullptr, n, type_,
                             arithmetic_->op(), root, link_.collectives(), request);
        }));
      }
    }
    copy_bytes(place_of(in, link_.rank()), to, static_cast<std::int64_t>(out.bytes()));
    return {};
  }
  if (!overlap(in, out)) return reduce_scatter_into(to);
  scratch_.aside.resize(out.bytes());
  STORMO_RETURN_IF_ERROR(reduce_scatter_into(scratch_.aside.data()));
  copy_bytes(scratch_.aside.data(), to, static_cast<std::int64_t>(out.bytes()));
  return {};
}

Status Execution::reduce_scatter_into(std::byte* out) {
  const void* in = r_.in.front().data;
  const MPI_Comm ranks = link_.collectives();
  if (r_.counts.empty()) {
    return link_.run("MPI_Ireduce_scatter_block", call_.by, [&](MPI_Request* request) {
      return MPI_Ireduce_scatter_block(in, out, length(count_of(0)), type_, arithmetic_->op(),
                                       ranks, request);
    });
  }
  return link_.run("MPI_Ireduce_scatter", call_.by, [&](MPI_Request* request) {
    return MPI_Ireduce_scatter(in, out, scratch_.counts.data(), type_, arithmetic_->op(), ranks,
                               request);
  });
}

Status Execution::all_to_all() {
  const Buffer& in = r_.in.front();
  const Buffer& out = r_.out.front();
  const bool equal = r_.counts.empty();
  const std::int64_t block = in.count / link_.size();
  if (equal && fits_one_call()) {
    if (in.count == 0) return {};
    return link_.run("MPI_Ialltoall", call_.by, [&](MPI_Request* request) {
      return MPI_Ialltoall(in.data, length(block), type_, out.data, length(block), type_,
                           link_.collectives(), request);
    });
  }
  if (!equal && options_.compare_calls) STORMO_RETURN_IF_ERROR(compare_blocks());
  std::vector<Block> sends;
  std::vector<Block> receives;
  auto* from = static_cast<std::byte*>(in.data);
  auto* to = static_cast<std::byte*>(out.data);
  for (Rank r = 0; r < link_.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    sends.push_back({r, from, (equal ? block : r_.counts[i]) * width()});
    receives.push_back({r, to, (equal ? block : r_.out_counts[i]) * width()});
    from += sends.back().bytes;
    to += receives.back().bytes;
  }
  const auto me = static_cast<std::size_t>(link_.rank());
  copy_bytes(sends[me].data, receives[me].data, sends[me].bytes);
  return exchange(sends, receives);
}

/// Whether every rank expects what the others send to it. All ranks come to the same verdict.
Status Execution::compare_blocks() {
  std::vector<std::int64_t>& counts = scratch_.their_counts;
  const auto n = static_cast<std::size_t>(link_.size());
  counts.assign(r_.counts.begin(), r_.counts.end());
  counts.resize(2 * n);
  STORMO_RETURN_IF_ERROR(link_.run("MPI_Ialltoall", call_.by, [&](MPI_Request* request) {
    return MPI_Ialltoall(counts.data(), 1, MPI_INT64_T, counts.data() + n, 1, MPI_INT64_T,
                         link_.collectives(), request);
  }));
  const std::span<const std::int64_t> theirs = std::span(counts).subspan(n);
  const auto [sent, expected] = std::ranges::mismatch(theirs, r_.out_counts);
  const auto wrong = static_cast<std::size_t>(sent - theirs.begin());
  Link::Words verdict{wrong < n ? 1u : 0u, 0};
  STORMO_RETURN_IF_ERROR(link_.maximum(verdict, call_.by));
  if (verdict[0] == 0) return {};
  if (wrong == n) return {Code::kMismatch, "counts that other ranks gave do not fit together"};
  return {Code::kMismatch, fmt::format("rank {} sends {} elements to rank {}, which expects {}",
                                       wrong, *sent, link_.rank(), *expected)};
}

/// Blocks of this rank itself are left out: they have been copied.
Status Execution::exchange(std::span<const Block> sends, std::span<const Block> receives) {
  std::vector<MPI_Request> requests;
  const auto start = [&](const Block& b, bool sending) {
    for (std::int64_t at = 0; at < b.bytes && b.peer != link_.rank();
         at += options_.bytes_per_call) {
      const int n = length(std::min(options_.bytes_per_call, b.bytes - at));
      MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
      const int code =
          sending
              ? MPI_Isend(b.data + at, n, MPI_BYTE, b.peer, kBlockTag, link_.messages(), &request)
              : MPI_Irecv(b.data + at, n, MPI_BYTE, b.peer, kBlockTag, link_.messages(), &request);
      if (code != MPI_SUCCESS) return code;
    }
    return MPI_SUCCESS;
  };
  const Status started = link_.library().call("MPI_Isend", [&] {
    int code = MPI_SUCCESS;
    for (const Block& b : receives) code = code == MPI_SUCCESS ? start(b, false) : code;
    for (const Block& b : sends) code = code == MPI_SUCCESS ? start(b, true) : code;
    return code;
  });
  const Status done = requests.empty() ? ok_status() : link_.wait("MPI_Isend", requests, call_.by);
  return started.ok() ? done : started;
}

}  // namespace stormo::mpi
