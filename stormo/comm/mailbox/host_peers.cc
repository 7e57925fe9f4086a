#include <stormo/comm/mailbox/host_peers.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace stormo::comm {
namespace {

using Kind = MessageRecord::Kind;
using transport::HostRegion;
using transport::RingHeader;

constexpr std::uint32_t kRing = HostRegion::kRingBytes;
constexpr std::uint32_t kAlignment = 8;
/// In place of a record: the rest of the ring is empty, and the next record lies at its beginning.
constexpr std::byte kSkip{0xff};

constexpr std::uint32_t room_of(std::size_t payload) {
  return static_cast<std::uint32_t>((sizeof(MessageRecord) + payload + kAlignment - 1) /
                                    kAlignment * kAlignment);
}
/// A sender that waits for room finds at least this much in use: a record of the longest payload
/// does not fit, nor the part of the ring that it would skip.
constexpr std::uint64_t kLongestPayload = Matching::Options().eager_bytes;
constexpr std::uint32_t kAlmostFull = kRing - 2 * room_of(kLongestPayload);
// whatever a sender may send ahead has room, with the part that is skipped and a record of each
// long message that a program is likely to have under way
static_assert(Matching::Options().eager_window + 2 * room_of(kLongestPayload) <= kRing / 4 * 3);

/// Of a message that is copied into the Arena: while its receiver copies one, the sender copies the
/// next ones.
constexpr int kPiecesAhead = 4;

/// Of the payload that follows a record.
std::uint64_t bytes_behind(const MessageRecord& record) {
  return record.kind == Kind::kEager ? record.bytes : 0;
}

}  // namespace

HostPeers::HostPeers(transport::HostGroup& host, Rank first, transport::WaitPolicy policy)
    : host_(host), first_(first), policy_(policy), peers_(static_cast<std::size_t>(host.size())) {}

void HostPeers::put(const Matching::Outgoing& outgoing) {
  Peer& to = peer(outgoing.to - first_);
  if (to.has_left) return;
  if (outgoing.record.kind == Kind::kData) {
    const std::size_t before = to.pieces.size();
    Matching::cut(outgoing, kPieceUnderLock, to.pieces);
    num_queued_ += to.pieces.size() - before;
    return;
  }
  to.queued.push_back(outgoing);
  num_queued_ += outgoing.record.must_leave() ? 1 : 0;
}

const std::byte* HostPeers::here(int local, std::uint64_t address) const {
  if (host_.threads()) return reinterpret_cast<const std::byte*>(address);
  const std::uintptr_t there = host_.region()->cell(local).home.arena;
  return reinterpret_cast<const std::byte*>(
      reinterpret_cast<std::uintptr_t>(host_.address(local, 0)) + (address - there));
}

bool HostPeers::can_read(const Matching::Fetch& fetch) {
  if (host_.threads()) return true;
  const int local = fetch.from - first_;
  std::optional<transport::HostGroup::Reach>& known = peer(local).reach;
  if (!known) known = host_.reach(local);
  return known->can_read || known->memory.is_mapped(here(local, fetch.offer.address));
}

Status HostPeers::bring(const Matching::Fetch& fetch, std::size_t offset, std::span<std::byte> to) {
  const int local = fetch.from - first_;
  const std::byte* const from = here(local, fetch.offer.address) + offset;
  Status outcome;
  if (host_.threads() || peer(local).reach->memory.is_mapped(from)) {
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
  } else {
    outcome = peer(local).reach->memory.read(to.data(), from, to.size());
  }
  // a change of nothing, so that the bytes were read before it
  std::atomic<std::uint32_t>& sends_ended = host_.region()->cell(local).sends_ended;
  if (sends_ended.fetch_or(0, std::memory_order_acq_rel) == 0) return outcome;
  return {Code::kCancelled, fmt::format("rank {} has ended its sends", fetch.from)};
}

void HostPeers::abandon(bool offers) {
  if (!offers && staged_.empty()) return;
  host_.region()->cell(host_.rank()).sends_ended.store(1, std::memory_order_seq_cst);
  while (!staged_.empty()) unstage(staged_.begin()->first);
}

Result<bool> HostPeers::push(Matching& matching, Matching::Effects& out) {
  bool moved = false;
  for (int local = 0; local < host_.size(); ++local) {
    std::deque<Matching::Outgoing>& queued = peer(local).queued;
    bool wrote = false;
    while (!queued.empty()) {
      const Matching::Outgoing& next = queued.front();
      if (!write(local, next)) break;
      if (next.send != 0) matching.sent(next.to, next.send, out);
      num_queued_ -= next.record.must_leave() ? 1 : 0;
      queued.pop_front();
      wrote = true;
    }
    STORMO_ASSIGN_OR_RETURN(const bool pushed, push_piece(local, matching, out));
    wrote |= pushed;
    if (wrote) doorbell_of(local).ring();
    moved |= wrote;
  }
  return moved;
}

/// One piece of a message: others have their turn before the next one.
Result<bool> HostPeers::push_piece(int local, Matching& matching, Matching::Effects& out) {
  Peer& to = peer(local);
  if (to.pieces.empty()) return false;
  Matching::Outgoing& next = to.pieces.front();
  STORMO_ASSIGN_OR_RETURN(const bool staged, stage(next));
  if (!staged || !write(local, next)) return false;
  if (next.send != 0) matching.sent(next.to, next.send, out);
  --num_queued_;
  to.pieces.pop_front();
  return true;
}

/// The receiver cannot read this rank's memory but for its Arena. False: not before it has copied
/// pieces that were staged.
Result<bool> HostPeers::stage(Matching::Outgoing& piece) {
  if (piece.record.address != 0) return true;  // it has waited for room in the ring
  Peer& to = peer(piece.to - first_);
  if (to.num_staged == kPiecesAhead) return false;
  void* const copy = host_.arena().allocate(std::max<std::size_t>(piece.payload.size(), 1));
  if (copy == nullptr && !staged_.empty()) return false;
  if (copy == nullptr) return Status(Code::kExhausted, "no room in the Arena for a message");
  if (!piece.payload.empty()) std::memcpy(copy, piece.payload.data(), piece.payload.size());
  staged_.emplace(copy, piece.to - first_);
  ++to.num_staged;
  piece.record.address = reinterpret_cast<std::uintptr_t>(copy);
  return true;
}

void HostPeers::unstage(const void* copy) {
  const auto node = staged_.extract(copy);
  --peer(node.mapped()).num_staged;
  host_.arena().deallocate(const_cast<void*>(node.key()));
}

/// False: there is no room. Sequentially consistent with the reader, which rings when it has made
/// room in a ring that was almost full: either it sees these bytes, or this rank sees the room.
bool HostPeers::write(int local, const Matching::Outgoing& outgoing) {
  RingHeader& ring = host_.region()->ring_header(host_.rank(), local);
  std::byte* const bytes = host_.region()->ring_bytes(host_.rank(), local);
  const std::uint64_t payload = bytes_behind(outgoing.record);
  const std::uint32_t need = room_of(payload);
  const std::uint32_t written = ring.written.load(std::memory_order_relaxed);
  const std::uint32_t used = written - ring.read.load(std::memory_order_seq_cst);
  const std::uint32_t to_end = kRing - written % kRing;
  const std::uint32_t skip = need > to_end ? to_end : 0;
  if (used + skip + need > kRing) return false;
  if (skip > 0) bytes[written % kRing] = kSkip;
  std::byte* const at = bytes + (written + skip) % kRing;
  std::memcpy(at, &outgoing.record, sizeof outgoing.record);
  if (payload > 0) std::memcpy(at + sizeof outgoing.record, outgoing.payload.data(), payload);
  ring.written.store(written + skip + need, std::memory_order_seq_cst);
  return true;
}

Result<bool> HostPeers::pull(Matching& matching, Matching::Effects& out) {
  bool moved = false;
  for (int local = 0; local < host_.size(); ++local) {
    Peer& from = peer(local);
    if (from.has_left) continue;
    // before the ring: what it has written before it left is received
    const bool leaves = host_.region()->cell(local).left.load(std::memory_order_acquire) != 0;
    STORMO_ASSIGN_OR_RETURN(const bool took, pull(local, matching, out));
    moved |= took;
    if (!leaves || local == host_.rank()) continue;
    forget(local);
    const Rank rank = local + first_;
    out.ended.push_back(
        {rank, Status(Code::kPeerLost, fmt::format("rank {} has left the group", rank))});
  }
  return moved;
}

/// What still waits to be sent to it, or was to be read by it.
void HostPeers::forget(int local) {
  Peer& from = peer(local);
  from.has_left = true;
  for (const Matching::Outgoing& o : from.queued) num_queued_ -= o.record.must_leave() ? 1 : 0;
  from.queued.clear();
  num_queued_ -= from.pieces.size();
  from.pieces.clear();
  for (auto s = staged_.begin(); s != staged_.end();) {
    const auto [copy, receiver] = *s++;
    if (receiver == local) unstage(copy);
  }
}

Result<bool> HostPeers::pull(int local, Matching& matching, Matching::Effects& out) {
  RingHeader& ring = host_.region()->ring_header(local, host_.rank());
  const std::byte* const bytes = host_.region()->ring_bytes(local, host_.rank());
  const std::uint32_t before = ring.read.load(std::memory_order_relaxed);
  const std::uint32_t written = ring.written.load(std::memory_order_acquire);
  std::uint32_t read = before;
  while (read != written) {
    const std::byte* const at = bytes + read % kRing;
    if (*at == kSkip) {
      read += kRing - read % kRing;
      continue;
    }
    MessageRecord record;
    std::memcpy(&record, at, sizeof record);
    const std::uint64_t payload = bytes_behind(record);
    if (payload > kLongestPayload) return Status(Code::kCorrupt, "a record of a wrong length");
    STORMO_RETURN_IF_ERROR(take(local, record, {at + sizeof record, payload}, matching, out));
    read += room_of(payload);
  }
  if (read == before) return false;
  ring.read.store(read, std::memory_order_seq_cst);
  if (ring.written.load(std::memory_order_seq_cst) - before > kAlmostFull) {
    doorbell_of(local).ring();
  }
  return true;
}

Status HostPeers::take(int local, const MessageRecord& record, std::span<const std::byte> payload,
                       Matching& matching, Matching::Effects& out) {
  const Rank from = local + first_;
  if (record.kind == Kind::kData) {  // staged in the sender's Arena
    STORMO_ASSIGN_OR_RETURN(const Matching::Fetch piece, matching.landing(from, record));
    out.fetches.push_back(piece);
    return {};
  }
  if (record.kind == Kind::kDone) {
    const auto copy = staged_.find(reinterpret_cast<const void*>(record.address));
    if (copy != staged_.end() && copy->second == local) {
      unstage(copy->first);
      return {};
    }
  }
  return matching.arrived(from, record, payload, out);
}

/// At first it looks at the ring of the rank that it waits for, which its sender writes before it
/// rings: that saves the way of a cache line. It does not see then that it is woken, for some
/// microseconds.
void HostPeers::sleep(Watch& watch, bool actively, Deadline by) {
  if (actively && watch.peer != kAnyRank) {
    const RingHeader& ring = host_.region()->ring_header(watch.peer - first_, host_.rank());
    const std::uint32_t read = ring.read.load(std::memory_order_relaxed);
    for (int i = 0; i < policy_.loads; ++i) {
      if (ring.written.load(std::memory_order_acquire) != read) return;
    }
  }
  const transport::WaitPolicy policy = actively ? policy_ : transport::WaitPolicy{};
  static_cast<void>(transport::wait_for(doorbell_of(host_.rank()), watch.number + 1,
                                        {policy, host_.health(), by}));
}

}  // namespace stormo::comm
