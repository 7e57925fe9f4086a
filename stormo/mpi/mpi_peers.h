#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <span>
#include <vector>

#include <stormo/comm/mailbox/peers.h>
#include <stormo/mpi/link.h>

namespace stormo::mpi {

/// All ranks of a group, for its mailbox: a record with the bytes of a short message is one message
/// of MPI, and the bytes of a long one are others, from the sender's memory to the receiver's. No
/// call waits for another rank while it has the library's lock.
///
/// MPI cannot give up what has begun to move. If the group fails meanwhile, abandon() waits for it
/// for a short time (Link::kPatience). What is not complete then stays MPI's until the process
/// ends: it may still read or write the buffers of these messages.
class MpiPeers final : public comm::Peers {
 public:
  /// `link` is borrowed. `bytes_per_call`: MPI counts with 32 bits.
  MpiPeers(Link& link, std::int64_t bytes_per_call);
  ~MpiPeers() override;

  void put(const comm::Matching::Outgoing& outgoing) override { queued_.push_back(outgoing); }
  Result<bool> push(comm::Matching& matching, comm::Matching::Effects& out) override;
  Result<bool> pull(comm::Matching& matching, comm::Matching::Effects& out) override;
  bool is_busy() const override { return !queued_.empty() || !sending_.empty(); }
  void abandon(bool offers) override;
  Watch watch(Rank peer) override {
    return {.peer = peer, .number = wakes_.load(std::memory_order_acquire)};
  }
  void sleep(Watch& watch, bool actively, Deadline by) override;
  void wake() override;

  /// A collective, after the mailbox has ended on this rank: takes the records that nobody has
  /// received, until all ranks have ended and have handed theirs to MPI. So the communicators can
  /// be freed.
  Status drain(Deadline by);

 private:
  /// A record, with a short payload, then the pieces of a long one.
  struct Sending {
    Rank to = 0;
    comm::Matching::Id send = 0;  ///< 0: the caller does not wait for it
    std::vector<std::byte> record;
    std::vector<MPI_Request> requests;
  };
  /// A record that has begun to arrive.
  struct Arriving {
    Rank from = 0;
    std::vector<std::byte> record;
    std::vector<MPI_Request> requests;
  };
  /// The pieces of a long payload.
  struct Receiving {
    comm::Matching::Fetch what;
    std::vector<MPI_Request> requests;
  };

  Status start(const comm::Matching::Outgoing& outgoing, comm::Matching& matching,
               comm::Matching::Effects& out);
  Status start_pieces(std::span<std::byte> bytes, Rank peer, bool sends,
                      std::vector<MPI_Request>& requests);
  Result<bool> accept();
  Result<bool> take_records(comm::Matching& matching, comm::Matching::Effects& out);
  Status take(const Arriving& arrived, comm::Matching& matching, comm::Matching::Effects& out);
  template <class Entry>
  void forget_complete(std::list<Entry>& entries);
  template <class Condition>
  bool wait_shortly(Condition&& holds);
  void note_move();

  Link& link_;
  const std::int64_t bytes_per_call_;
  std::deque<comm::Matching::Outgoing> queued_;
  std::list<Sending> sending_;
  std::list<Arriving> arriving_;  // those of one rank in its order
  std::list<Receiving> receiving_;
  bool is_abandoned_ = false;
  std::list<Sending> left_;  // whose pieces were not complete when the group ended

  std::atomic<std::uint32_t> wakes_{0};
  std::mutex sleep_mutex_;
  std::condition_variable woken_;  // wakes_ has changed
  // when the first sleep since the last move began, of the thread and of callers; 0: none
  std::array<std::atomic<TimePoint::rep>, 2> asleep_since_{};
};

}  // namespace stormo::mpi
