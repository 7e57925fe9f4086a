#include <stormo/transport/shm/shm_transport.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

namespace stormo::transport {
namespace {

struct FrameHeader {
  Tag tag;
  std::uint64_t bytes;
};

constexpr std::uint32_t kRing = HostRegion::kRingBytes;

/// Copies as much of `from` into the ring as fits; returns how much.
std::size_t push(RingHeader& ring, std::byte* storage, std::span<const std::byte> from) {
  const std::uint32_t written = ring.written.load(std::memory_order_relaxed);
  const std::uint32_t used = written - ring.read.load(std::memory_order_acquire);
  const std::size_t n = std::min<std::size_t>(kRing - used, from.size());
  const std::uint32_t at = written % kRing;
  const std::size_t first = std::min<std::size_t>(n, kRing - at);
  if (n == 0) return 0;
  std::memcpy(storage + at, from.data(), first);
  std::memcpy(storage, from.data() + first, n - first);
  ring.written.store(written + static_cast<std::uint32_t>(n), std::memory_order_release);
  return n;
}

/// Copies as much into `to` as the ring holds; returns how much.
std::size_t pull(RingHeader& ring, const std::byte* storage, std::span<std::byte> to) {
  const std::uint32_t read = ring.read.load(std::memory_order_relaxed);
  const std::uint32_t available = ring.written.load(std::memory_order_acquire) - read;
  const std::size_t n = std::min<std::size_t>(available, to.size());
  const std::uint32_t at = read % kRing;
  const std::size_t first = std::min<std::size_t>(n, kRing - at);
  if (n == 0) return 0;
  std::memcpy(to.data(), storage + at, first);
  std::memcpy(to.data() + first, storage, n - first);
  ring.read.store(read + static_cast<std::uint32_t>(n), std::memory_order_release);
  return n;
}

/// One message on its way: its header, then its payload.
template <class Bytes>
struct Part {
  int peer;
  FrameHeader header;
  Bytes payload;
  std::size_t done = 0;  // header and payload bytes moved
  bool complete() const { return done == sizeof(FrameHeader) + payload.size(); }
};

using SendPart = Part<std::span<const std::byte>>;
using ReceivePart = Part<std::span<std::byte>>;

class ShmTransport final : public Transport {
 public:
  ShmTransport(int rank, std::shared_ptr<HostRegion> region, int cores,
               std::shared_ptr<Health> health)
      : rank_(rank),
        region_(std::move(region)),
        health_(std::move(health)),
        policy_(wait_policy(region_->ranks(), cores)) {}

  Rank rank() const override { return rank_; }
  int size() const override { return region_->ranks(); }
  Counters counters() const override {
    const std::lock_guard lock(counters_mutex_);
    return counters_;
  }
  void fail(Status cause) override {
    failure_.fail(std::move(cause));
    region_->cell(rank_).doorbell.ring();
  }

  Status exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                  Deadline by) override;

 private:
  Status check_peer(Rank peer) const;
  bool progress_sends(std::vector<SendPart>& parts);
  Result<bool> progress_receives(std::vector<ReceivePart>& parts);
  bool advance(SendPart& part);
  Result<bool> advance(ReceivePart& part);
  Status wait_for_peers(std::uint32_t seen, Deadline by);
  void count(std::span<const Outgoing> sends, std::span<const Incoming> receives);

  int rank_;
  std::shared_ptr<HostRegion> region_;
  std::shared_ptr<Health> health_;  // of the group: watched, never changed
  Health failure_;                  // of this endpoint
  WaitPolicy policy_;
  mutable std::mutex counters_mutex_;
  Counters counters_;
};

Status ShmTransport::check_peer(Rank peer) const {
  if (peer >= 0 && peer < size() && peer != rank_) return {};
  return invalid_argument(
      fmt::format("rank {} cannot exchange a message with rank {} of {}", rank_, peer, size()));
}

Status ShmTransport::exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                              Deadline by) {
  std::vector<SendPart> out;
  std::vector<ReceivePart> in;
  for (const Outgoing& s : sends) {
    STORMO_RETURN_IF_ERROR(check_peer(s.to));
    out.push_back({s.to, {s.tag, s.bytes.size()}, s.bytes});
  }
  for (const Incoming& r : receives) {
    STORMO_RETURN_IF_ERROR(check_peer(r.from));
    in.push_back({r.from, {r.tag, r.bytes.size()}, r.bytes});
  }
  for (;;) {
    if (health_->failed()) failure_.fail(health_->status());
    if (failure_.failed()) return failure_.status();
    const std::uint32_t seen = region_->cell(rank_).doorbell.load();
    bool moved = progress_sends(out);
    const Result<bool> received = progress_receives(in);
    if (!received.ok()) {
      failure_.fail(received.status());
      return failure_.status();
    }
    moved = moved || *received;
    if (out.empty() && in.empty()) break;
    if (!moved) {
      const Status waited = wait_for_peers(seen, by);
      if (!waited.ok()) {
        failure_.fail(waited.within(in.empty()
                                        ? fmt::format("send to rank {}", out.front().peer)
                                        : fmt::format("recv from rank {}", in.front().peer)));
        return failure_.status();
      }
    }
  }
  count(sends, receives);
  return {};
}

/// Moves what fits; drops complete parts; a part waits for the earlier ones to the same peer.
bool ShmTransport::progress_sends(std::vector<SendPart>& parts) {
  bool moved = false;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool blocked =
        std::any_of(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i),
                    [&](const SendPart& p) { return p.peer == parts[i].peer && !p.complete(); });
    if (!blocked) moved = advance(parts[i]) || moved;
  }
  std::erase_if(parts, [](const SendPart& p) { return p.complete(); });
  return moved;
}

Result<bool> ShmTransport::progress_receives(std::vector<ReceivePart>& parts) {
  bool moved = false;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool blocked =
        std::any_of(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i),
                    [&](const ReceivePart& p) { return p.peer == parts[i].peer && !p.complete(); });
    if (blocked) continue;
    STORMO_ASSIGN_OR_RETURN(const bool advanced, advance(parts[i]));
    moved = moved || advanced;
  }
  std::erase_if(parts, [](const ReceivePart& p) { return p.complete(); });
  return moved;
}

bool ShmTransport::advance(SendPart& part) {
  RingHeader& ring = region_->ring_header(rank_, part.peer);
  std::byte* storage = region_->ring_bytes(rank_, part.peer);
  const std::size_t before = part.done;
  if (part.done < sizeof(FrameHeader)) {
    const auto header = std::as_bytes(std::span(&part.header, 1));
    part.done += push(ring, storage, header.subspan(part.done));
  }
  if (part.done >= sizeof(FrameHeader)) {
    part.done += push(ring, storage, part.payload.subspan(part.done - sizeof(FrameHeader)));
  }
  if (part.done == before) return false;
  region_->cell(part.peer).doorbell.ring();
  return true;
}

Result<bool> ShmTransport::advance(ReceivePart& part) {
  RingHeader& ring = region_->ring_header(part.peer, rank_);
  const std::byte* storage = region_->ring_bytes(part.peer, rank_);
  const std::size_t before = part.done;
  if (part.done < sizeof(FrameHeader)) {
    // all or nothing: a peeked header tells whether this is the message we expect
    const std::uint32_t available =
        ring.written.load(std::memory_order_acquire) - ring.read.load(std::memory_order_relaxed);
    if (available < sizeof(FrameHeader)) return false;
    FrameHeader header{};
    part.done += pull(ring, storage, std::as_writable_bytes(std::span(&header, 1)));
    if (header.tag != part.header.tag || header.bytes != part.header.bytes) {
      return Status(Code::kMismatch,
                    fmt::format("rank {} sent tag {:#x} with {} bytes where rank {} expects tag "
                                "{:#x} with {} bytes",
                                part.peer, header.tag, header.bytes, rank_, part.header.tag,
                                part.header.bytes));
    }
  }
  part.done += pull(ring, storage, part.payload.subspan(part.done - sizeof(FrameHeader)));
  if (part.done == before) return false;
  region_->cell(part.peer).doorbell.ring();
  return true;
}

Status ShmTransport::wait_for_peers(std::uint32_t seen, Deadline by) {
  return wait_for(region_->cell(rank_).doorbell, seen + 1, {policy_, *health_, by});
}

void ShmTransport::count(std::span<const Outgoing> sends, std::span<const Incoming> receives) {
  const std::lock_guard lock(counters_mutex_);
  counters_.messages_sent += sends.size();
  for (const Outgoing& s : sends) counters_.payload_bytes_sent += s.bytes.size();
  counters_.messages_received += receives.size();
  for (const Incoming& r : receives) counters_.payload_bytes_received += r.bytes.size();
}

}  // namespace

std::unique_ptr<Transport> make_shm_transport(int rank, std::shared_ptr<HostRegion> region,
                                              int cores, std::shared_ptr<Health> health) {
  return std::make_unique<ShmTransport>(rank, std::move(region), cores, std::move(health));
}

}  // namespace stormo::transport
