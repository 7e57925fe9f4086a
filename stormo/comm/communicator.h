#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/event.h>
#include <stormo/base/status.h>
#include <stormo/comm/request.h>
#include <stormo/comm/work.h>
#include <stormo/plan/schedule.h>
#include <stormo/transport/health.h>
#include <stormo/transport/memory/arena.h>
#include <stormo/transport/store/rendezvous.h>
#include <stormo/transport/transport.h>

namespace stormo::comm {

/// A group of ranks able to run collectives.
///
/// Every rank must call the same operations in the same order with the same dtype, count, reduction
/// and root. Otherwise every rank gets kMismatch with a table of what each rank called, and no data
/// is returned. A rank that needs no data from some others (the root of a small broadcast, all but
/// the root of a small reduce) may return before they have called; its next operation then reports
/// a difference. Collectives are executed in the order submitted. A blocking call submits and
/// waits; when nothing is pending it runs on the caller's thread. Any thread may call, but the
/// order of calls must then still be the same on all ranks.
///
/// `by` is the deadline of a call. If a call is not complete by then, the group fails, because the
/// other ranks would wait for it forever. (A deadline of Work::wait() does not make it fail.)
/// never() is safe: the heartbeat finds a dead or frozen peer and makes the group fail. After the
/// first failure the group stays failed: every pending and later call returns the same first cause
/// (rank, host, operation).
///
/// Buffers allocated from arena() are reduced in place. Other (private) buffers of 2 MiB per rank
/// or more are read by system calls (process_vm_readv) if the kernel allows it, which takes two to
/// five times as long. Below 16 KiB per rank they are copied through the arena; in between, and for
/// all_reduce, the method measured to be faster is used. After a failed call has returned, no peer
/// uses its buffers any more: a process of this host that still could is ended by SIGKILL
/// (docs/adr/0007-fence.md).
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  ///< position among the ranks of this host
  virtual int local_size() const = 0;
  virtual int cross_rank() const = 0;  ///< index of this host
  virtual int cross_size() const = 0;
  virtual const std::string& host() const = 0;
  /// By index of host; ranks are numbered host by host.
  virtual const std::vector<int>& ranks_per_host() const = 0;

  /// A collective: makes a group of some of this group's ranks. `members` is in ascending order and
  /// equal on all ranks; every rank of this group calls it, and those that are no members get null.
  /// Operations of different groups do not wait for each other; asynchronous ones may be submitted
  /// to overlapping groups in any order. A failure in a subgroup makes the whole job fail. Blocks
  /// until all members are connected, at most until `by`. The subgroup must not outlive this group.
  /// Cost: a region of shared memory per host and, between hosts, a socket per pair of ranks.
  virtual Result<std::unique_ptr<Communicator>> subgroup(std::span<const Rank> members,
                                                         Deadline by) = 0;

  /// The same by the members alone, under a name: every member calls it with equal members, and
  /// nobody else does. It waits for the members only, whatever other operations of this group are
  /// pending. Any thread may call it, and several at once for different groups. A name has 1 to 255
  /// bytes of any value, and belongs to one group of this group at a time, as long as that lives.
  ///
  /// kInvalidArgument if this rank is no member, or has a group of that name; those that wait for
  /// it are told. kMismatch on all members that have called it when two give different members.
  /// kPeerLost when a member has left in order. When a deadline passes, the call fails on all
  /// members that have called it, with the ranks that have not; a later call may use the name
  /// again. None of these makes this group fail. When all members have come they connect, which
  /// takes milliseconds, whatever `by` is; a failure of that is one of the job.
  virtual Result<std::unique_ptr<Communicator>> group_of(std::span<const Rank> members,
                                                         const std::string& name, Deadline by) = 0;

  /// Runs one operation and blocks until it is complete. `by` is the deadline for it and for all
  /// operations submitted before it; when it passes, the group fails.
  virtual Status run(const Request& request, Deadline by) = 0;
  /// Starts one operation. The request's lists are copied; the memory of its buffers stays borrowed
  /// until the Work is complete.
  virtual Work submit(const Request& request) = 0;

  // Every operation blocks; the usual ones have an asynchronous form too, the others by submit().
  // A std::vector, std::array or std::span of numbers is a Buffer. Costs: docs/algorithms.md. A
  // count of 0 is allowed; sizes are not limited by 2 GiB.

  /// In place: every buffer becomes its reduction over all ranks. `weight` is for kWeightedAverage.
  Status all_reduce(std::span<const Buffer> buffers, Reduction how, double weight = 1,
                    Deadline by = Deadline::never()) {
    return run(in_place_request(OperationKind::kAllReduce, buffers, std::move(how), 0, weight), by);
  }
  Status all_reduce(Buffer b, Reduction how, Deadline by = Deadline::never()) {
    return all_reduce({&b, 1}, std::move(how), 1, by);
  }
  Work all_reduce_async(std::span<const Buffer> buffers, Reduction how, double weight = 1) {
    return submit(in_place_request(OperationKind::kAllReduce, buffers, std::move(how), 0, weight));
  }

  /// As all_reduce, but only root gets the result; the others' buffers are unspecified afterwards.
  Status reduce(std::span<const Buffer> buffers, Reduction how, Rank root,
                Deadline by = Deadline::never()) {
    return run(in_place_request(OperationKind::kReduce, buffers, std::move(how), root), by);
  }
  Status reduce(Buffer b, Reduction how, Rank root, Deadline by = Deadline::never()) {
    return reduce(std::span<const Buffer>(&b, 1), std::move(how), root, by);
  }

  /// From root's buffers into everyone's.
  Status broadcast(std::span<const Buffer> buffers, Rank root, Deadline by = Deadline::never()) {
    return run(in_place_request(OperationKind::kBroadcast, buffers, ReduceOp::kSum, root), by);
  }
  Status broadcast(Buffer b, Rank root, Deadline by = Deadline::never()) {
    return broadcast(std::span<const Buffer>(&b, 1), root, by);
  }
  Work broadcast_async(std::span<const Buffer> buffers, Rank root) {
    return submit(in_place_request(OperationKind::kBroadcast, buffers, ReduceOp::kSum, root));
  }

  /// In place: rank r gets the reduction of ranks 0 to r, in this order.
  Status scan(Buffer b, Reduction how, Deadline by = Deadline::never()) {
    return run(in_place_request(OperationKind::kScan, {&b, 1}, std::move(how)), by);
  }
  /// In place: rank r gets the reduction of ranks 0 to r-1; rank 0's buffer stays as it is.
  Status exclusive_scan(Buffer b, Reduction how, Deadline by = Deadline::never()) {
    return run(in_place_request(OperationKind::kExclusiveScan, {&b, 1}, std::move(how)), by);
  }

  // Operations with parts: one buffer is the whole, which consists of a part for each rank, in the
  // order of ranks. `counts` has the number of elements of every rank's part and is equal on all
  // ranks; if it is empty, parts are equal. `in` and `out` must not overlap, except that a rank's
  // part may be its own position in the whole.

  /// out (the whole) = the ranks' `in`, in the order of ranks.
  Status all_gather(Buffer in, Buffer out, Deadline by = Deadline::never()) {
    return all_gather(in, out, {}, by);
  }
  Status all_gather(Buffer in, Buffer out, std::span<const std::int64_t> counts,
                    Deadline by = Deadline::never()) {
    return run(request(OperationKind::kAllGather, in, out, 0, counts), by);
  }
  Work all_gather_async(Buffer in, Buffer out, std::span<const std::int64_t> counts = {}) {
    return submit(request(OperationKind::kAllGather, in, out, 0, counts));
  }

  /// As all_gather, but only root gets the result; `out` is ignored on other ranks.
  Status gather(Buffer in, Buffer out, Rank root, std::span<const std::int64_t> counts = {},
                Deadline by = Deadline::never()) {
    return run(request(OperationKind::kGather, in, out, root, counts), by);
  }

  /// out = this rank's part of root's `in`, the whole; `in` is ignored on other ranks.
  Status scatter(Buffer in, Buffer out, Rank root, std::span<const std::int64_t> counts = {},
                 Deadline by = Deadline::never()) {
    return run(request(OperationKind::kScatter, in, out, root, counts), by);
  }

  /// out = this rank's part of the reduction of all ranks' `in`, each a whole. `in` is unspecified
  /// afterwards.
  Status reduce_scatter(Buffer in, Buffer out, Reduction how, Deadline by = Deadline::never()) {
    return reduce_scatter(in, out, std::move(how), {}, by);
  }
  Status reduce_scatter(Buffer in, Buffer out, Reduction how, std::span<const std::int64_t> counts,
                        Deadline by = Deadline::never()) {
    return run(request(OperationKind::kReduceScatter, in, out, 0, counts, std::move(how)), by);
  }

  /// Part d of `in` is sent to rank d, part s of `out` comes from rank s. All parts are equal.
  Status all_to_all(Buffer in, Buffer out, Deadline by = Deadline::never()) {
    return all_to_all(in, {}, out, {}, by);
  }
  /// The counts are this rank's own: what it sends to and receives from each rank.
  Status all_to_all(Buffer in, std::span<const std::int64_t> in_counts, Buffer out,
                    std::span<const std::int64_t> out_counts, Deadline by = Deadline::never()) {
    Request r = request(OperationKind::kAllToAll, in, out, 0, in_counts);
    r.out_counts = out_counts;
    return run(r, by);
  }

  /// Returns when every rank has called it.
  Status barrier(Deadline by = Deadline::never()) { return run(Request{}, by); }

  // Messages. They make progress beside the group's collectives and beside each other: a rank may
  // start any number of them in any order, and wait for them in any other. A message goes to the
  // receive that was called first among those of its sender and its tag; so messages of one tag
  // between two ranks keep their order. dtype and count must be equal on both sides, else the group
  // fails with kMismatch. A short message (16 KiB) may be complete at its sender before it is
  // received. A long one in a host is copied once, by its receiver (docs/messages.md).

  Status send(Buffer data, Rank to, std::uint32_t tag, Deadline by = Deadline::never()) {
    return run(message(OperationKind::kSend, data, to, tag), by);
  }
  Work send_async(Buffer data, Rank to, std::uint32_t tag) {
    return submit(message(OperationKind::kSend, data, to, tag));
  }
  Status recv(Buffer data, Rank from, std::uint32_t tag, Deadline by = Deadline::never()) {
    return run(message(OperationKind::kReceive, data, from, tag), by);
  }
  Work recv_async(Buffer data, Rank from, std::uint32_t tag) {
    return submit(message(OperationKind::kReceive, data, from, tag));
  }
  /// From whoever sends first with this tag: `source` becomes its rank, before the call is
  /// complete, and is borrowed until then.
  Status recv_any(Buffer data, std::uint32_t tag, Rank& source, Deadline by = Deadline::never()) {
    Request r = message(OperationKind::kReceive, data, kAnyRank, tag);
    r.source = &source;
    return run(r, by);
  }
  Work recv_any_async(Buffer data, std::uint32_t tag, Rank& source) {
    Request r = message(OperationKind::kReceive, data, kAnyRank, tag);
    r.source = &source;
    return submit(r);
  }

  /// Memory that the ranks of this host share. It lives as long as the process (it is never freed,
  /// because tensors may outlive the group).
  virtual transport::Arena& arena() = 0;
  /// Address in this process of byte `offset` of the arena() of local rank `peer` (which may be
  /// this rank). The memory is readable and writable as long as this group lives. Null when the
  /// ranks of a host share no memory (engines over other libraries). The callers must synchronise
  /// their accesses: what a rank wrote before an operation of the group is visible to the others
  /// after it. Any thread; no cost.
  virtual std::byte* peer_address(int peer, std::uint64_t offset) = 0;
  /// OK, or the first cause of the group's failure.
  virtual Status status() const = 0;
  /// Makes the group fail on every rank with this cause, e.g. an exception of the program. Any
  /// thread.
  virtual void fail(Status cause) = 0;
  /// What this rank is doing, for reports of failures: "step 12". Each call counts as progress to
  /// ranks that wait for this one (docs/hangs.md). Cheap; any thread.
  virtual void set_section(std::string_view text) = 0;
  /// Payload bytes that this rank has sent to other hosts since it joined.
  virtual std::uint64_t bytes_sent() const = 0;
  /// Name of the builder that an operation with this goal and this total size would run; empty for
  /// a scan inside of one host, which needs none.
  virtual std::string algorithm(plan::GoalKind goal, std::uint64_t bytes) const = 0;
  /// Receives a kCommunication and a kWait event per operation; null: none. Not owned.
  virtual void set_sink(Sink* sink) = 0;
  /// Leaves the group in order: waits until every rank has called it (or the group has failed), so
  /// that no rank is left waiting. The destructor of World calls it. Operations after it fail.
  virtual Status finalize(Deadline by) = 0;
  /// Leaves the group in order, while the others go on. What is pending has 2 s, and ends with
  /// kCancelled then. What others have yet to do with this rank fails within 10 s, mostly at once,
  /// and the job with it; the cause says "rank 1 has left in order". Operations after it fail. An
  /// error: over MPI (kInvalidArgument), where all ranks end together; or the job has failed
  /// before, or not all could be told or had their messages: this rank has left all the same.
  /// Destroy or leave subgroups before the world. Where the process serves the job's Store, it
  /// waits at its exit until the others have left too, at most an hour.
  virtual Status leave() = 0;

 private:
  static Request in_place_request(OperationKind kind, std::span<const Buffer> buffers,
                                  Reduction how, Rank root = 0, double weight = 1) {
    Request r;
    r.kind = kind;
    r.in = r.out = buffers;
    r.reduction = std::move(how);
    r.root = root;
    r.weight = weight;
    return r;
  }
  /// Borrows `in` and `out`: they must be variables of the caller.
  static Request request(OperationKind kind, const Buffer& in, const Buffer& out, Rank root,
                         std::span<const std::int64_t> counts, Reduction how = ReduceOp::kSum) {
    Request r;
    r.kind = kind;
    r.in = {&in, 1};
    r.out = {&out, 1};
    r.reduction = std::move(how);
    r.root = root;
    r.counts = counts;
    return r;
  }
  static Request message(OperationKind kind, const Buffer& data, Rank peer, std::uint32_t tag) {
    Request r = request(kind, data, data, peer, {});
    r.tag = tag;
    return r;
  }
};

/// Joins the job that `r` describes and returns the communicator of all its ranks, the world.
/// Blocks until every rank has joined or r.join_timeout has passed; kRefused when ranks run
/// different versions. `version` must be equal on all ranks; empty: this library's version.
Result<std::unique_ptr<Communicator>> join(const transport::Rendezvous& r,
                                           std::string version = {});

/// A group of `n` ranks that are threads of this process, for tests and in-process replicas:
/// element r belongs to rank r and is used by one thread. Same algorithms and synchronisation as
/// processes on one host.
Result<std::vector<std::unique_ptr<Communicator>>> make_inproc_group(int n);

}  // namespace stormo::comm
