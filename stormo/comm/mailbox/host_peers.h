#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <stormo/comm/mailbox/peers.h>
#include <stormo/transport/shm/host_group.h>

namespace stormo::comm {

/// The ranks of this host. A ring in shared memory leads from each rank to each other one: it has
/// records, and the bytes of short messages behind theirs. Long messages are read where they lie,
/// in one copy: in the sender's Arena by its mapping here, else by the kernel (process_vm_readv).
/// Where the kernel does not allow this, the sender copies them into its Arena first, a few pieces
/// at a time: the lock is held meanwhile, and the Arena may have less room than a message needs.
///
/// Nothing is written into memory of another rank but rings, so readers do not enter the Fence. A
/// copy may still be made while its sender gives up and uses its memory again. The sender says so
/// in its cell first, and the receiver looks at this last: then the copy is no message.
class HostPeers final : public Peers {
 public:
  /// `first`: the rank, in the mailbox, of local rank 0. `host` is borrowed.
  HostPeers(transport::HostGroup& host, Rank first, transport::WaitPolicy policy);

  void put(const Matching::Outgoing& outgoing) override;
  Result<bool> push(Matching& matching, Matching::Effects& out) override;
  Result<bool> pull(Matching& matching, Matching::Effects& out) override;
  bool is_busy() const override { return num_queued_ > 0 || !staged_.empty(); }
  bool can_read(const Matching::Fetch& fetch) override;
  Status bring(const Matching::Fetch& fetch, std::size_t offset, std::span<std::byte> to) override;
  void abandon(bool offers) override;
  Watch watch(Rank peer) override {
    return {.peer = peer, .number = doorbell_of(host_.rank()).load()};
  }
  void sleep(Watch& watch, bool actively, Deadline by) override;
  void wake() override { doorbell_of(host_.rank()).ring(); }

 private:
  struct Peer {
    std::deque<Matching::Outgoing> queued;
    std::deque<Matching::Outgoing> pieces;  ///< kData; the first one may have been staged
    int num_staged = 0;
    std::optional<transport::HostGroup::Reach> reach;  ///< null: not tried yet
    bool has_left = false;
  };
  transport::Flag& doorbell_of(int local) const { return host_.region()->cell(local).doorbell; }
  Peer& peer(int local) { return peers_[static_cast<std::size_t>(local)]; }
  /// The same place as if all of the peer's memory were mapped at the distance of its Arena.
  const std::byte* here(int local, std::uint64_t address) const;
  Result<bool> push_piece(int local, Matching& matching, Matching::Effects& out);
  Result<bool> stage(Matching::Outgoing& piece);
  void unstage(const void* copy);
  bool write(int local, const Matching::Outgoing& outgoing);
  Result<bool> pull(int local, Matching& matching, Matching::Effects& out);
  Status take(int local, const MessageRecord& record, std::span<const std::byte> payload,
              Matching& matching, Matching::Effects& out);
  void forget(int local);

  transport::HostGroup& host_;
  const Rank first_;
  const transport::WaitPolicy policy_;
  std::vector<Peer> peers_;     // by local rank
  std::size_t num_queued_ = 0;  // of those that must leave
  // copies in the Arena, and who receives them, until he has them
  std::map<const void*, int> staged_;
};

}  // namespace stormo::comm
