#include <stormo/comm/group/inline_payload.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include <stormo/comm/group/posting.h>
#include <stormo/comm/operation/operation.h>

namespace stormo::comm {
namespace {

void copy(void* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

/// Elements of rank r's part, and of the parts before it.
std::int64_t part(const Request& r, const Buffer& own, int rank) {
  return r.counts.empty() ? own.count : r.counts[static_cast<std::size_t>(rank)];
}
std::int64_t before(const Request& r, const Buffer& own, int rank) {
  return r.counts.empty()
             ? own.count * rank
             : std::accumulate(r.counts.begin(), r.counts.begin() + rank, std::int64_t{0});
}

std::uint64_t bytes_of(const Buffer& like, std::int64_t count) {
  return static_cast<std::uint64_t>(count) * size_of(like.dtype);
}

}  // namespace

std::uint64_t InlinePayload::contribution(const Request& r) const {
  const int n = host_.size();
  switch (form_of(r.kind)) {
    case BufferForm::kGathers:
      return r.counts.empty()
                 ? r.in[0].bytes()
                 : bytes_of(r.in[0], *std::max_element(r.counts.begin(), r.counts.end()));
    case BufferForm::kScatters: return bytes_of(r.out[0], before(r, r.out[0], n));
    case BufferForm::kExchanges:
    case BufferForm::kInPlace: break;
  }
  std::uint64_t bytes = 0;
  for (const Buffer& b : r.in) bytes += b.bytes();
  return bytes;
}

bool InlinePayload::fits(const Request& r) const {
  // what each rank sends may differ, so that ranks could not agree
  if (r.kind == OperationKind::kAllToAll && !r.counts.empty()) return false;
  return contribution(r) <=
         Posting::max_inline_bytes(host_.size(), host_.crowded(), reduces(r.kind));
}

LocalRange InlinePayload::sources(const Request& r) const {
  const int me = host_.rank();
  const LocalRange all{0, host_.size()};
  const LocalRange none{};
  switch (r.kind) {
    case OperationKind::kBroadcast:
    case OperationKind::kScatter: return r.root == me ? none : LocalRange{r.root, r.root + 1};
    case OperationKind::kReduce:
    case OperationKind::kGather: return r.root == me ? all : none;
    case OperationKind::kScan: return {0, me + 1};
    case OperationKind::kExclusiveScan: return {0, me};
    case OperationKind::kAllReduce:
    case OperationKind::kAllGather:
    case OperationKind::kReduceScatter:
    case OperationKind::kAllToAll:
    case OperationKind::kBarrier:
    case OperationKind::kFinalize:
    case OperationKind::kSubgroup: return all;
    case OperationKind::kSend:
    case OperationKind::kReceive: break;
  }
  return none;
}

const std::byte* InlinePayload::payload(int rank) const {
  return Posted(host_, rank).payload(posted_bytes_);
}

void InlinePayload::post(const Request& r, std::uint64_t bytes) {
  posted_bytes_ = bytes;
  if (bytes == 0 || !contributes(r, host_.rank())) return;
  std::byte* to = Posted(host_, host_.rank()).payload(posted_bytes_);
  for (const Buffer& b : r.in) {
    if (b.count > 0) std::memcpy(to, b.data, b.bytes());
    to += b.bytes();
  }
}

/// out = the terms of those ranks, which lie `offset` bytes into their payloads; this rank's is
/// `own`, because what it has posted is on its way to other caches.
void InlinePayload::reduce_ranks(const Operands& o, LocalRange from, std::size_t offset,
                                 const std::byte* own, const Buffer& out) {
  sources_.clear();
  for (int rank = from.first; rank < from.last; ++rank) {
    const double scale = o.scales[static_cast<std::size_t>(rank)];
    if (scale == 0) continue;
    sources_.push_back({rank == host_.rank() ? own : payload(rank) + offset, scale});
  }
  void* to = out.data;
  if (o.user != nullptr) {
    reduce(out.dtype, o.user->combine, sources_, {&to, 1}, out.count);
  } else {
    o.kernel(o.how, sources_, {&to, 1}, out.count);
  }
}

void InlinePayload::finish_reduction(const Request& r, LocalRange from, const Operands& o) {
  if (r.kind == OperationKind::kReduceScatter) {
    const std::size_t offset = bytes_of(r.out[0], before(r, r.out[0], host_.rank()));
    const auto* own = static_cast<const std::byte*>(r.in[0].data) + offset;
    return reduce_ranks(o, from, offset, own, r.out[0]);
  }
  if (from == LocalRange{}) return;
  std::size_t offset = 0;
  for (const Buffer& b : r.out) {
    reduce_ranks(o, from, offset, static_cast<const std::byte*>(b.data), b);
    offset += b.bytes();
  }
}

void InlinePayload::finish(const Request& r, LocalRange from, const Operands& o) {
  if (posted_bytes_ == 0) return;
  if (reduces(r.kind)) return finish_reduction(r, from, o);
  const int me = host_.rank();
  const int n = host_.size();
  switch (r.kind) {
    case OperationKind::kBroadcast: {
      std::size_t offset = 0;
      for (const Buffer& b : r.out) {
        if (r.root != me) copy(b.data, payload(r.root) + offset, b.bytes());
        offset += b.bytes();
      }
      return;
    }
    case OperationKind::kGather:
      if (r.root != me) return;
      [[fallthrough]];
    case OperationKind::kAllGather:
      for (int rank = 0; rank < n; ++rank) {
        auto* to =
            static_cast<std::byte*>(r.out[0].data) + bytes_of(r.in[0], before(r, r.in[0], rank));
        copy(to, payload(rank), bytes_of(r.in[0], part(r, r.in[0], rank)));
      }
      return;
    case OperationKind::kScatter:
      return copy(r.out[0].data, payload(r.root) + bytes_of(r.out[0], before(r, r.out[0], me)),
                  r.out[0].bytes());
    case OperationKind::kAllToAll: {
      const std::size_t block = r.in[0].bytes() / static_cast<std::size_t>(n);
      for (int rank = 0; rank < n; ++rank) {
        copy(static_cast<std::byte*>(r.out[0].data) + block * static_cast<std::size_t>(rank),
             payload(rank) + block * static_cast<std::size_t>(me), block);
      }
      return;
    }
    case OperationKind::kAllReduce:
    case OperationKind::kReduce:
    case OperationKind::kReduceScatter:
    case OperationKind::kScan:
    case OperationKind::kExclusiveScan:  // finish_reduction()
    case OperationKind::kSend:
    case OperationKind::kReceive:
    case OperationKind::kBarrier:
    case OperationKind::kFinalize:
    case OperationKind::kSubgroup: return;
  }
}

}  // namespace stormo::comm
