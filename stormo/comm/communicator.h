#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/event.h>
#include <stormo/base/status.h>
#include <stormo/comm/buffer.h>
#include <stormo/comm/work.h>
#include <stormo/plan/schedule.h>
#include <stormo/transport/arena.h>
#include <stormo/transport/health.h>
#include <stormo/transport/rendezvous.h>
#include <stormo/transport/transport.h>

namespace stormo::comm {

/// A group of ranks able to run collectives.
///
/// Every rank must call the same operations in the same order with the same dtype, count, reduction
/// and root; a difference raises kMismatch on every rank, with a table of what each rank called,
/// and data is never returned. Operations are executed in the order submitted. Blocking calls are
/// submit-and-wait; when nothing is pending they run on the caller's thread. Any thread may call,
/// but the order between threads must then be the same on all ranks.
///
/// `by` bounds one call; never() is safe, because a dead or frozen peer ends the group by the
/// heartbeat. After the first failure the group stays failed: every pending and later call returns
/// the same first cause (rank, host, operation).
///
/// Buffers allocated from arena() are reduced where they lie; others are copied through it.
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

  /// In place. `weight` counts for kWeightedAverage only. Cost: docs/algorithms.md.
  virtual Work all_reduce_async(std::span<const Buffer> buffers, ReduceOp op,
                                double weight = 1) = 0;
  /// From root's buffer into everyone's.
  virtual Work broadcast_async(std::span<const Buffer> buffers, Rank root) = 0;
  /// out = the ranks' `in`, in rank order; out.count == size * in.count. `in` may be this rank's
  /// place in `out`.
  virtual Work all_gather_async(Buffer in, Buffer out) = 0;
  /// out = this rank's slice of the reduction of all `in`; in.count == size * out.count.
  /// `in` is left unspecified.
  virtual Work reduce_scatter_async(Buffer in, Buffer out, ReduceOp op) = 0;
  virtual Work barrier_async() = 0;
  /// Messages between two ranks keep their order; `tag`, dtype and count must be equal on both
  /// sides.
  virtual Work send_async(Buffer data, Rank to, std::uint32_t tag) = 0;
  virtual Work recv_async(Buffer data, Rank from, std::uint32_t tag) = 0;

  // Blocking forms: submit, then wait.
  virtual Status all_reduce(std::span<const Buffer> buffers, ReduceOp op, double weight = 1,
                            Deadline by = Deadline::never()) = 0;
  Status all_reduce(Buffer b, ReduceOp op, Deadline by = Deadline::never()) {
    return all_reduce({&b, 1}, op, 1, by);
  }
  virtual Status broadcast(std::span<const Buffer> buffers, Rank root,
                           Deadline by = Deadline::never()) = 0;
  Status broadcast(Buffer b, Rank root, Deadline by = Deadline::never()) {
    return broadcast(std::span<const Buffer>(&b, 1), root, by);
  }
  virtual Status all_gather(Buffer in, Buffer out, Deadline by = Deadline::never()) = 0;
  virtual Status reduce_scatter(Buffer in, Buffer out, ReduceOp op,
                                Deadline by = Deadline::never()) = 0;
  virtual Status barrier(Deadline by = Deadline::never()) = 0;
  virtual Status send(Buffer data, Rank to, std::uint32_t tag, Deadline by = Deadline::never()) = 0;
  virtual Status recv(Buffer data, Rank from, std::uint32_t tag,
                      Deadline by = Deadline::never()) = 0;

  /// Memory that the ranks of this host share; lives as long as the process (it is leaked on
  /// purpose: tensors may outlive the group).
  virtual transport::Arena& arena() = 0;
  /// OK, or the first cause of the group's failure.
  virtual Status status() const = 0;
  /// Ends the group on every rank with this cause, e.g. an exception of the program.
  virtual void fail(Status cause) = 0;
  /// What this rank is doing, for reports of failures: "step 12". Cheap; any thread.
  virtual void set_section(std::string_view text) = 0;
  /// Payload bytes that this rank has sent to other hosts since it joined.
  virtual std::uint64_t bytes_sent() const = 0;
  /// Name of the builder that an operation with this goal would run, for reports.
  virtual std::string algorithm(plan::GoalKind goal) const = 0;
  /// Receives a kCommunication and a kWait event per operation; null: none. Not owned.
  virtual void set_sink(Sink* sink) = 0;
  /// Leaves the group well: waits until every rank has called it (or the group failed), so that
  /// nobody is left waiting. Called by the destructor of the world; later calls fail.
  virtual Status finalize(Deadline by) = 0;
};

/// The world of ranks that `r` describes. Blocks until every rank has joined or r.join_timeout has
/// passed; kRefused when ranks run different versions.
/// `version` is what must be equal on all ranks; default: this library's.
Result<std::unique_ptr<Communicator>> join(const transport::Rendezvous& r,
                                           std::string version = {});

/// `n` ranks as threads of this process, for tests and in-process replicas: element r is used by
/// one thread. Same algorithms and synchronisation as processes on one host.
Result<std::vector<std::unique_ptr<Communicator>>> make_inproc_group(int n);

}  // namespace stormo::comm
