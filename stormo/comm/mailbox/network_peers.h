#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <stormo/base/descriptor.h>
#include <stormo/comm/mailbox/peers.h>
#include <stormo/comm/operation/connector.h>
#include <stormo/transport/net/channel.h>
#include <stormo/transport/net/socket.h>

namespace stormo::comm {

/// The ranks of other hosts, over a socket to each. The bytes of messages go from the sender's
/// memory to the kernel, and those of long ones from there to the receiver's memory, without a
/// copy in between. With checksums they go in pieces, each with its own, because whoever computes
/// one holds the lock. A closed or broken connection concerns only who waits for that rank: if it
/// has failed, the job is told by other ways.
class NetworkPeers final : public Peers {
 public:
  explicit NetworkPeers(MessageLines lines);
  /// What a record carries. `number`: among those that go this way, so that no other one is taken
  /// for it.
  static std::uint64_t checksum_of(MessageRecord record, std::uint64_t number);

  void put(const Matching::Outgoing& outgoing) override;
  Result<bool> push(Matching& matching, Matching::Effects& out) override;
  Result<bool> pull(Matching& matching, Matching::Effects& out) override;
  bool is_busy() const override { return num_queued_ > 0; }
  void abandon(bool /*offers*/) override {}
  void settle(Deadline by) override;
  Watch watch(Rank peer) override;
  void sleep(Watch& watch, bool actively, Deadline by) override;
  void wake() override;

 private:
  struct Peer {
    Rank rank = 0;
    transport::Channel socket;
    transport::Acknowledgements acknowledgements;
    // the first of these has left up to `sent` bytes, of record and payload together
    std::deque<Matching::Outgoing> queued;
    std::size_t num_summed = 0;  // of queued: their checksums have that of the payload
    std::uint64_t sent = 0;
    int send_error = 0;                        // of send(); receive() does not report it again
    std::uint64_t num_put = 0, num_taken = 0;  // records, for their checksums
    // what is being received: a record, then its payload, of which `received` bytes are there
    bool in_payload = false;
    MessageRecord record;
    Matching::Fetch landing;  // of a kData
    std::span<std::byte> payload;
    std::uint64_t received = 0;
    std::vector<std::byte> kept;  // the payload of a kEager
    // short records and what follows them are read ahead with one system call
    std::unique_ptr<std::byte[]> staging;
    std::size_t staged_begin = 0, staged_end = 0;
    Status ended;  ///< not OK: it takes part no more
    bool is_told = false;
  };
  Result<bool> push(Peer& peer, Matching& matching, Matching::Effects& out);
  static constexpr std::size_t kMaxBatch = 16;  // records
  /// What one system call shall send.
  struct Batch {
    std::array<iovec, 2 * kMaxBatch> parts;
    std::size_t num_parts = 0, bytes = 0;
  };
  void fill(Batch& batch, Peer& peer) const;
  void account_sent(Peer& peer, std::uint64_t bytes, Matching& matching, Matching::Effects& out);
  Result<bool> pull(Peer& peer, Matching& matching, Matching::Effects& out);
  std::size_t read(Peer& peer);
  Status use_staged(Peer& peer, Matching& matching, Matching::Effects& out) const;
  Status begin_payload(Peer& peer, Matching& matching) const;
  Status end_payload(Peer& peer, Matching& matching, Matching::Effects& out) const;
  void check_lines();
  void end(Peer& peer, Status why);
  void forget_queue(Peer& peer);
  Peer& peer(Rank rank) { return peers_.at(rank); }

  const Descriptor wake_;  // eventfd
  std::atomic<std::uint32_t> wakes_{0};
  std::atomic<bool> is_rung_{false};  // wake_ has to be emptied
  std::atomic<int> sleeping_{0};
  const bool checksum_;
  const Duration silence_;
  std::map<Rank, Peer> peers_;
  std::size_t num_queued_ = 0;  // of those that must leave
  TimePoint lines_checked_{};
};

}  // namespace stormo::comm
