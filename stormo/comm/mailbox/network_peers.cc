#include <stormo/comm/mailbox/network_peers.h>

#include <fmt/format.h>
#include <linux/sockios.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include <stormo/base/units.h>
#include <stormo/transport/tcp/frame.h>
#include <stormo/transport/tcp/tcp_transport.h>

namespace stormo::comm {
namespace {

using Kind = MessageRecord::Kind;

constexpr std::size_t kRecord = sizeof(MessageRecord);
constexpr std::size_t kTurnBytes = 256 << 10;  // then others have their turn
constexpr std::size_t kStagingBytes = 32 << 10;
/// Before a caller sleeps: as in an exchange (transport/tcp).
constexpr Duration kSpin = std::chrono::microseconds(200);
constexpr Duration kLineCheck = std::chrono::milliseconds(100);
constexpr int kSliceMs = 20;
constexpr int kUnwokenSliceMs = 1;  // where the process has no descriptor left for wake_
/// A peer whose buffers are full and that receives nothing, in a barrier, acknowledges no more.
constexpr Duration kSettle = std::chrono::seconds(2);
constexpr Duration kSettleLook = std::chrono::milliseconds(1);

iovec part(const std::byte* data, std::size_t bytes) {
  return {const_cast<std::byte*>(data), bytes};
}

constexpr std::uint64_t kLowerHalf = 0xffffffff;

std::uint64_t checksum_of_payload(std::span<const std::byte> payload) {
  return transport::checksum_of(payload) & ~kLowerHalf;
}

Status lost(Rank peer, int error) {
  std::string why =
      error == 0 ? "it closed the connection" : transport::describe_socket_error(error);
  if (error == ETIMEDOUT) {
    why = "its host answers no more: the network between the hosts is cut, or that host is down";
  }
  return {Code::kPeerLost, fmt::format("connection to rank {}: {}", peer, why)};
}

}  // namespace

NetworkPeers::NetworkPeers(MessageLines lines)
    : wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      checksum_(lines.checksum),
      silence_(lines.silence) {
  for (auto& [rank, socket] : lines.sockets) {
    if (silence_ > Duration::zero()) transport::keep_alive_within(socket.fd(), silence_);
    Peer& made = peers_[rank];
    made.rank = rank;
    made.socket = std::move(socket);
  }
}

std::uint64_t NetworkPeers::checksum_of(MessageRecord record, std::uint64_t number) {
  record.checksum = number;
  return transport::checksum_of(std::as_bytes(std::span(&record, 1))) & kLowerHalf;
}

void NetworkPeers::put(const Matching::Outgoing& outgoing) {
  Peer& to = peer(outgoing.to);
  if (!to.ended.ok()) return;
  const std::size_t before = to.queued.size();
  if (checksum_ && outgoing.record.kind == Kind::kData) {
    Matching::cut(outgoing, kPieceUnderLock, to.queued);
  } else {
    to.queued.push_back(outgoing);
  }
  for (std::size_t i = before; i < to.queued.size(); ++i) {
    MessageRecord& record = to.queued[i].record;
    record.checksum = checksum_of(record, to.num_put++);
    num_queued_ += record.must_leave() ? 1 : 0;
  }
}

Result<bool> NetworkPeers::push(Matching& matching, Matching::Effects& out) {
  bool moved = false;
  for (auto& [rank, peer] : peers_) {
    if (peer.queued.empty()) continue;
    STORMO_ASSIGN_OR_RETURN(const bool sent, push(peer, matching, out));
    moved |= sent;
  }
  if (moved) transport::note_tcp_progress();
  return moved;
}

Result<bool> NetworkPeers::push(Peer& peer, Matching& matching, Matching::Effects& out) {
  bool moved = false;
  Batch batch;
  for (std::size_t turn = 0; turn < kTurnBytes && !peer.queued.empty();) {
    fill(batch, peer);
    const ssize_t n = peer.socket.send(std::span(batch.parts).first(batch.num_parts));
    const int error = n < 0 ? errno : 0;
    if (error == EINTR) continue;
    if (error == EAGAIN) break;
    if (error == EPIPE || error == ECONNRESET || error == ETIMEDOUT) {
      // what it has sent before may still be received: pull() finds the end
      if (error != EPIPE) peer.send_error = error;
      forget_queue(peer);
      break;
    }
    if (error != 0) {
      return io_error(fmt::format("send to rank {}: {}", peer.rank, std::strerror(error)));
    }
    moved = true;
    turn += static_cast<std::size_t>(n);
    account_sent(peer, static_cast<std::uint64_t>(n), matching, out);
    if (static_cast<std::size_t>(n) < batch.bytes) break;  // the socket is full
  }
  return moved;
}

/// Records from the first one on that has not left.
void NetworkPeers::fill(Batch& batch, Peer& peer) const {
  batch.num_parts = batch.bytes = 0;
  const auto add = [&](const std::byte* data, std::size_t bytes) {
    batch.parts[batch.num_parts++] = {const_cast<std::byte*>(data), bytes};
    batch.bytes += bytes;
  };
  std::uint64_t skip = peer.sent;
  const std::size_t most = std::min(kMaxBatch, peer.queued.size());
  for (std::size_t i = 0; i < most && batch.bytes < kTurnBytes; ++i) {
    Matching::Outgoing& o = peer.queued[i];
    if (checksum_ && i == peer.num_summed) {
      o.record.checksum |= checksum_of_payload(o.payload);
      ++peer.num_summed;
    }
    if (skip < kRecord) add(reinterpret_cast<const std::byte*>(&o.record) + skip, kRecord - skip);
    const std::uint64_t behind = skip - std::min<std::uint64_t>(skip, kRecord);
    if (o.payload.size() > behind) add(o.payload.data() + behind, o.payload.size() - behind);
    skip = 0;
  }
}

void NetworkPeers::account_sent(Peer& peer, std::uint64_t bytes, Matching& matching,
                                Matching::Effects& out) {
  peer.sent += bytes;
  while (!peer.queued.empty()) {
    const Matching::Outgoing& first = peer.queued.front();
    const std::uint64_t whole = kRecord + first.payload.size();
    if (peer.sent < whole) return;
    peer.sent -= whole;
    if (first.send != 0) matching.sent(first.to, first.send, out);
    num_queued_ -= first.record.must_leave() ? 1 : 0;
    peer.queued.pop_front();
    peer.num_summed -= std::min<std::size_t>(peer.num_summed, 1);
  }
}

Result<bool> NetworkPeers::pull(Matching& matching, Matching::Effects& out) {
  check_lines();
  bool moved = false;
  for (auto& [rank, peer] : peers_) {
    STORMO_ASSIGN_OR_RETURN(const bool came, pull(peer, matching, out));
    moved |= came;
    if (!peer.ended.ok() && !std::exchange(peer.is_told, true)) {
      out.ended.push_back({rank, peer.ended});
    }
  }
  if (moved) transport::note_tcp_progress();
  return moved;
}

Result<bool> NetworkPeers::pull(Peer& peer, Matching& matching, Matching::Effects& out) {
  bool moved = false;
  for (std::size_t turn = 0; turn < kTurnBytes && peer.ended.ok();) {
    const std::size_t n = read(peer);
    if (n == 0) break;
    moved = true;
    turn += n;
    STORMO_RETURN_IF_ERROR(use_staged(peer, matching, out));
  }
  return moved;
}

/// Reads into the current payload and, behind it, ahead; 0 when nothing has come.
std::size_t NetworkPeers::read(Peer& peer) {
  if (!peer.staging) peer.staging = std::make_unique<std::byte[]>(kStagingBytes);
  if (peer.staged_begin > 0) {  // less than a record is left
    std::memmove(peer.staging.get(), peer.staging.get() + peer.staged_begin,
                 peer.staged_end - peer.staged_begin);
    peer.staged_end -= std::exchange(peer.staged_begin, 0);
  }
  const std::span<std::byte> direct =
      peer.in_payload ? peer.payload.subspan(peer.received) : std::span<std::byte>();
  std::array<iovec, 2> parts{
      part(direct.data(), direct.size()),
      part(peer.staging.get() + peer.staged_end, kStagingBytes - peer.staged_end)};
  ssize_t n = 0;
  do {
    n = peer.socket.receive(parts);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return 0;
  if (n <= 0) {
    end(peer, lost(peer.rank, n == 0 ? peer.send_error : errno));
    return 0;
  }
  const auto bytes = static_cast<std::size_t>(n);
  const std::size_t into_payload = std::min(bytes, direct.size());
  peer.received += into_payload;
  peer.staged_end += bytes - into_payload;
  return bytes;
}

void NetworkPeers::end(Peer& peer, Status why) {
  peer.ended = std::move(why);
  forget_queue(peer);
}

void NetworkPeers::forget_queue(Peer& peer) {
  for (const Matching::Outgoing& o : peer.queued) num_queued_ -= o.record.must_leave() ? 1 : 0;
  peer.queued.clear();
  peer.num_summed = 0;
  peer.sent = 0;
}

Status NetworkPeers::use_staged(Peer& peer, Matching& matching, Matching::Effects& out) const {
  for (;;) {
    const std::size_t staged = peer.staged_end - peer.staged_begin;
    const std::byte* const from = peer.staging.get() + peer.staged_begin;
    if (!peer.in_payload) {
      if (staged < kRecord) return {};
      std::memcpy(&peer.record, from, kRecord);
      peer.staged_begin += kRecord;
      STORMO_RETURN_IF_ERROR(begin_payload(peer, matching));
      continue;
    }
    const std::size_t taken = std::min(staged, peer.payload.size() - peer.received);
    if (taken > 0) std::memcpy(peer.payload.data() + peer.received, from, taken);
    peer.staged_begin += taken;
    peer.received += taken;
    if (peer.received < peer.payload.size()) return {};
    STORMO_RETURN_IF_ERROR(end_payload(peer, matching, out));
  }
}

Status NetworkPeers::begin_payload(Peer& peer, Matching& matching) const {
  const MessageRecord& record = peer.record;
  peer.payload = {};
  peer.received = 0;
  peer.in_payload = true;
  if (checksum_of(record, peer.num_taken++) != (record.checksum & kLowerHalf)) {
    return {Code::kCorrupt,
            fmt::format("a record from rank {} is damaged, or is not the next one", peer.rank)};
  }
  if (record.kind == Kind::kData) {
    STORMO_ASSIGN_OR_RETURN(peer.landing, matching.landing(peer.rank, record));
    peer.payload = peer.landing.to;
  } else if (record.kind == Kind::kEager) {
    if (record.bytes > Matching::Options().eager_bytes) {
      return {Code::kCorrupt, fmt::format("a record from rank {} of a wrong length", peer.rank)};
    }
    peer.kept.resize(record.bytes);
    peer.payload = peer.kept;
  }
  return {};
}

Status NetworkPeers::end_payload(Peer& peer, Matching& matching, Matching::Effects& out) const {
  peer.in_payload = false;
  if (checksum_ && checksum_of_payload(peer.payload) != (peer.record.checksum & ~kLowerHalf)) {
    return {Code::kCorrupt,
            fmt::format("a message from rank {} has another checksum than was sent", peer.rank)};
  }
  if (peer.record.kind != Kind::kData) {
    return matching.arrived(peer.rank, peer.record, peer.payload, out);
  }
  matching.fetched(peer.landing, /*by_memory=*/false, out);
  return {};
}

/// Whether the hosts of peers that this rank sends to are still there.
void NetworkPeers::check_lines() {
  const TimePoint now = std::chrono::steady_clock::now();
  if (silence_ <= Duration::zero() || now - lines_checked_ < kLineCheck) return;
  lines_checked_ = now;
  for (auto& [rank, peer] : peers_) {
    const Duration owed = peer.acknowledgements.owed_for(peer.socket.fd(), now);
    if (owed < silence_ || !peer.ended.ok()) continue;
    end(peer,
        {Code::kPeerLost,
         fmt::format("the host of rank {} has acknowledged nothing for {}: the network between "
                     "the hosts is cut, or that host is down",
                     rank, format_duration(owed))});
  }
}

/// A process that ends with unread bytes makes its kernel drop what is not acknowledged yet.
void NetworkPeers::settle(Deadline by) {
  const auto unacknowledged = [](const Peer& peer) {
    int bytes = 0;
    pollfd line{peer.socket.fd(), 0, 0};  // an error or an end is reported unasked
    return ::ioctl(line.fd, SIOCOUTQ, &bytes) == 0 && bytes > 0 && ::poll(&line, 1, 0) == 0;
  };
  const Deadline enough = Deadline::at(std::min(by.when(), Deadline::after(kSettle).when()));
  for (const auto& [rank, peer] : peers_) {
    while (unacknowledged(peer) && !enough.expired()) std::this_thread::sleep_for(kSettleLook);
  }
}

/// While somebody sleeps, who has been woken is not known: the eventfd stays readable.
Peers::Watch NetworkPeers::watch(Rank peer) {
  if (is_rung_ && sleeping_ == 0) {
    is_rung_ = false;
    std::uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof count);
  }
  Watch made{.peer = peer, .number = wakes_.load(std::memory_order_acquire)};
  made.lines.reserve(peers_.size() + 1);
  made.lines.push_back({wake_.get(), POLLIN, 0});
  for (const auto& [rank, other] : peers_) {
    const int events = POLLIN | (other.queued.empty() ? 0 : POLLOUT);
    if (other.ended.ok()) {
      made.lines.push_back({other.socket.fd(), static_cast<short>(events), 0});
    }
  }
  return made;
}

void NetworkPeers::sleep(Watch& watch, bool actively, Deadline by) {
  sleeping_ += 1;
  const TimePoint begun = std::chrono::steady_clock::now();
  const auto is_woken = [&] { return wakes_.load(std::memory_order_acquire) != watch.number; };
  const auto look = [&](int timeout) {
    return ::poll(watch.lines.data(), watch.lines.size(), timeout) != 0;
  };
  bool over = is_woken();
  TimePoint now = begun;
  while (actively && !over && now - begun < kSpin) {
    over = look(0) || is_woken();
    if (!over) ::sched_yield();
    now = std::chrono::steady_clock::now();
  }
  const int slice_ms = wake_.valid() ? kSliceMs : kUnwokenSliceMs;
  if (!over) look(transport::poll_timeout(now, by.when(), slice_ms));
  sleeping_ -= 1;
}

void NetworkPeers::wake() {
  wakes_.fetch_add(1, std::memory_order_release);
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  is_rung_ = true;
}

}  // namespace stormo::comm
