#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/mpi/library.h>
#include <stormo/transport/health.h>
#include <stormo/transport/memory/wait.h>

namespace stormo::mpi {

/// The tags of messages between two ranks; messages of one tag keep their order.
enum MessageTag : int { kFailureTag, kMeetTag, kHeaderTag, kPayloadTag, kBlockTag };

/// Two communicators of MPI, one for its collectives and one for messages of our own, and how this
/// rank waits in them: until all is complete, the group has failed here or elsewhere, or the
/// deadline has passed. Its functions that wait are called by one thread at a time.
class Link {
 public:
  /// Takes both communicators over; errors must be returned by them (MPI_ERRORS_RETURN). `world`
  /// is that of the whole job, which outlives this one and has its failures; null: this is it.
  Link(Library& library, MPI_Comm collectives, MPI_Comm messages, transport::WaitPolicy policy,
       Link* world);
  ~Link();
  Link(const Link&) = delete;

  Library& library() const { return library_; }
  Rank rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm collectives() const { return collectives_; }
  MPI_Comm messages() const { return messages_; }
  const transport::Health& health() const { return world_.health_; }
  bool is_world() const { return &world_ == this; }

  /// The link of those ranks that call it as members, null for the others. All ranks call it.
  Result<std::unique_ptr<Link>> split(bool member);

  /// Waits for requests whose memory stays valid for ever, should this fail: they are then given
  /// up, and abandoned() becomes true.
  Status wait(std::string_view name, std::span<MPI_Request> requests, Deadline by);
  /// Starts one nonblocking call, `start(MPI_Request*)`, and waits for it, as above.
  template <class F>
  Status run(std::string_view name, Deadline by, F&& start) {
    MPI_Request request = MPI_REQUEST_NULL;
    STORMO_RETURN_IF_ERROR(library_.call(name, [&] { return start(&request); }));
    return wait(name, {&request, 1}, by);
  }
  /// Waits for a message of a fixed length. When this fails nothing is left pending.
  Status receive(std::span<std::byte> data, Rank from, MessageTag tag, Deadline by);
  bool abandoned() const { return abandoned_; }

  /// Each word becomes its maximum over all ranks; returns when every rank has called it. When
  /// this fails nothing is left pending.
  using Words = std::array<std::uint64_t, 2>;
  Status maximum(Words& words, Deadline by);

  /// Fails the job here and, if this is the first cause, on the other ranks. Any thread.
  void fail(Status cause);
  /// Fails it here only: all ranks of the job come to this verdict.
  void fail_here(Status cause) { world_.health_.fail(std::move(cause)); }
  /// Learns of failures on other ranks. Any thread; never blocks.
  void listen();
  /// Frees the communicators of a group that has ended well: all ranks call it, and nothing else
  /// afterwards.
  Status close();

 private:
  Status poll(std::string_view name, std::span<MPI_Request> requests, Deadline by);
  Status test(std::string_view name, std::span<MPI_Request> requests, bool& done);
  void announce(const Status& cause);
  int receive_failure();
  void cancel(MPI_Request& receive);

  Library& library_;
  MPI_Comm collectives_;
  MPI_Comm messages_;
  const transport::WaitPolicy policy_;
  Link& world_;
  transport::Health health_;  // the world's counts
  Rank rank_ = 0;
  int size_ = 1;
  bool abandoned_ = false;
  bool closed_ = false;  // guarded by the library's lock
  /// What may still be on its way out when a wait fails; given up with the requests.
  struct Outgoing {
    std::array<Words, 32> words;
    std::array<char, 1024> failure;
  };
  std::unique_ptr<Outgoing> outgoing_ = std::make_unique<Outgoing>();
};

}  // namespace stormo::mpi
