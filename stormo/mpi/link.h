#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <chrono>
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
enum MessageTag : int { kFailureTag, kMeetTag, kRecordTag, kPayloadTag, kBlockTag };

/// Two MPI communicators, one for collectives and one for Stormo's own messages, and the functions
/// that wait for requests in them. A wait ends when all requests are complete, when the group has
/// failed on this or another rank, or at the deadline. Functions that wait may be called by one
/// thread at a time.
class Link {
 public:
  /// Takes ownership of both communicators, which must return errors (MPI_ERRORS_RETURN). `world`:
  /// the link of the whole job, which must outlive this one and stores its failures; null: this is
  /// the link of the whole job.
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

  /// The link of some ranks, in ascending order. Only these call it, this one among them, and all
  /// of them at once: until all have, no other thread of theirs can call MPI.
  Result<std::unique_ptr<Link>> of_members(std::span<const Rank> members);

  /// Blocks until the requests are complete. If this fails, the requests are abandoned and
  /// abandoned() becomes true; their memory must then stay valid until the process ends.
  Status wait(std::string_view name, std::span<MPI_Request> requests, Deadline by);
  /// Starts one nonblocking call, `start(MPI_Request*)`, and waits for it, as above.
  template <class F>
  Status run(std::string_view name, Deadline by, F&& start) {
    MPI_Request request = MPI_REQUEST_NULL;
    STORMO_RETURN_IF_ERROR(library_.call(name, [&] { return start(&request); }));
    return wait(name, {&request, 1}, by);
  }
  bool abandoned() const { return abandoned_; }
  /// Whether the requests are complete. Does not block; any thread.
  Status test(std::string_view name, std::span<MPI_Request> requests, bool& done);
  /// Asks MPI to end receives. One whose message has begun to arrive goes on until all of it is
  /// there, which needs its sender.
  void cancel(std::span<MPI_Request> receives);
  /// How long a failed group waits for what MPI has begun.
  static constexpr Duration kPatience = std::chrono::milliseconds(200);
  const transport::WaitPolicy& policy() const { return policy_; }

  /// A collective: replaces each word by its maximum over all ranks. After a failure no request is
  /// pending, or abandoned() is true.
  using Words = std::array<std::uint64_t, 2>;
  Status maximum(Words& words, Deadline by);

  /// Makes the job fail on this rank and, if this is the first cause, on the other ranks. Any
  /// thread.
  void fail(Status cause);
  /// Makes the job fail on this rank only; for failures that every rank finds by itself.
  void fail_here(Status cause) { world_.health_.fail(std::move(cause)); }
  /// Checks for failures of other ranks. Any thread; never blocks.
  void listen();
  /// Frees the communicators of a group that has ended in order. All ranks call it, as the last
  /// call.
  Status close();

 private:
  Status poll(std::string_view name, std::span<MPI_Request> requests, Deadline by);
  bool settle(std::string_view name, std::span<MPI_Request> requests);
  void abandon();
  void announce(const Status& cause);
  int receive_failure();

  Library& library_;
  MPI_Comm collectives_;
  MPI_Comm messages_;
  const transport::WaitPolicy policy_;
  Link& world_;
  transport::Health health_;  // the world's counts
  Rank rank_ = 0;
  int size_ = 1;
  std::atomic<bool> abandoned_{false};
  bool closed_ = false;  // guarded by the library's lock
  /// What MPI may still use when a wait fails; given up with the requests.
  struct Buffers {
    std::array<Words, 32> sent;
    std::array<Words, 32> received;
    std::array<char, 1024> failure;
  };
  std::unique_ptr<Buffers> buffers_ = std::make_unique<Buffers>();
};

}  // namespace stormo::mpi
