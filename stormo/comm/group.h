#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <stormo/comm/activity.h>
#include <stormo/comm/communicator.h>
#include <stormo/comm/coordinator.h>
#include <stormo/comm/execute.h>
#include <stormo/comm/operation.h>
#include <stormo/comm/operation_lane.h>
#include <stormo/comm/program.h>
#include <stormo/transport/shm/host_group.h>

namespace stormo::comm {

/// The Communicator over shared memory inside hosts and a message transport between them.
class Group final : public Communicator {
 public:
  struct Parts {
    Rank rank = 0;
    std::vector<int> ranks_per_host;  ///< ranks are numbered host by host
    std::string host = "localhost";
    std::shared_ptr<transport::Health> health;
    std::unique_ptr<transport::HostGroup> host_group;
    std::unique_ptr<transport::Transport>
        local;                                   ///< messages inside this host; null if alone on it
    std::unique_ptr<transport::Transport> wire;  ///< messages to other hosts; null on one host
    std::unique_ptr<transport::StoreServer> server;  ///< when this process hosts the Store
  };
  /// `coordinator` may be null (threads of one process, a world of one): failures then stay in
  /// `health`.
  explicit Group(Parts parts);
  ~Group() override;
  void set_coordinator(std::unique_ptr<Coordinator> coordinator);
  /// What this rank is doing; any thread.
  std::string activity() const;

  int rank() const override { return parts_.rank; }
  int size() const override { return static_cast<int>(hosts_.host.size()); }
  int local_rank() const override { return parts_.host_group->rank(); }
  int local_size() const override { return parts_.host_group->size(); }
  int cross_rank() const override { return hosts_.host[static_cast<std::size_t>(parts_.rank)]; }
  int cross_size() const override { return static_cast<int>(parts_.ranks_per_host.size()); }
  const std::string& host() const override { return parts_.host; }

  Work all_reduce_async(std::span<const Buffer> buffers, ReduceOp op, double weight) override;
  Work broadcast_async(std::span<const Buffer> buffers, Rank root) override;
  Work all_gather_async(Buffer in, Buffer out) override;
  Work reduce_scatter_async(Buffer in, Buffer out, ReduceOp op) override;
  Work barrier_async() override;
  Work send_async(Buffer data, Rank to, std::uint32_t tag) override;
  Work recv_async(Buffer data, Rank from, std::uint32_t tag) override;

  Status all_reduce(std::span<const Buffer> buffers, ReduceOp op, double weight,
                    Deadline by) override;
  Status broadcast(std::span<const Buffer> buffers, Rank root, Deadline by) override;
  Status all_gather(Buffer in, Buffer out, Deadline by) override;
  Status reduce_scatter(Buffer in, Buffer out, ReduceOp op, Deadline by) override;
  Status barrier(Deadline by) override;
  Status send(Buffer data, Rank to, std::uint32_t tag, Deadline by) override;
  Status recv(Buffer data, Rank from, std::uint32_t tag, Deadline by) override;

  transport::Arena& arena() override { return parts_.host_group->arena(); }
  Status status() const override;
  void fail(Status cause) override;
  void set_section(std::string_view text) override;
  std::uint64_t bytes_sent() const override;
  std::string algorithm(plan::GoalKind goal) const override;
  void set_sink(Sink* sink) override { sink_ = sink; }
  Status finalize(Deadline by) override;

 private:
  /// One collective on its way through the group.
  struct Call {
    Operation operation;
    std::span<const Buffer> buffers;
    plan::Goal goal;
    double weight = 1;
    Deadline by = Deadline::never();
  };
  bool alone() const { return size() == 1; }

  // group.cc: what each operation is
  Status do_all_reduce(std::span<const Buffer> buffers, ReduceOp op, double weight, Deadline by);
  Status do_broadcast(std::span<const Buffer> buffers, Rank root, Deadline by);
  Status do_all_gather(Buffer in, Buffer out, Deadline by);
  Status do_reduce_scatter(Buffer in, Buffer out, ReduceOp op, Deadline by);
  Status do_barrier(OperationKind kind, Deadline by);
  Status do_message(OperationKind kind, Buffer data, Rank peer, std::uint32_t tag, Deadline by);
  Status check_buffers(std::span<const Buffer> buffers, OperationKind kind, ReduceOp op) const;

  // collective.cc: how a collective runs
  Status run(Call call);
  Status run_checked(Call& call);
  Status meet_and_compare(Call& call, bool inline_payload);
  Status compare_postings() const;
  Result<double> total_weight(const Call& call);
  void prepare_scales(const Call& call, double weight_of_all);
  bool fits_inline(const Call& call) const;
  void post_payload(const Call& call);
  void finish_inline(const Call& call);
  void finish_alone(const Call& call);
  Status post_addresses(const Call& call);
  void map_addresses(const Call& call);
  Status run_program(const Call& call);
  void copy_back(const Call& call);
  const Program& program_for(const plan::Goal& goal);
  Status conclude(const Operation& operation, Status outcome);
  void record(Lane lane, const Operation& operation, TimePoint start, TimePoint end);

  Parts parts_;
  HostMap hosts_;
  Operands operands_;
  std::vector<Operand> sources_;
  std::vector<std::byte> staging_;
  std::byte* bounce_ = nullptr;  // in the arena: copies of private buffers
  std::size_t bounce_bytes_ = 0;
  std::map<plan::Goal, Program> programs_;
  std::uint64_t sequence_ = 0;
  Sink* sink_ = nullptr;
  bool finalized_ = false;

  Activity activity_;
  mutable std::mutex mutex_;
  std::string section_;  // guarded by mutex_
  Status first_cause_;   // guarded by mutex_

  std::unique_ptr<Coordinator> coordinator_;
  OperationLane lane_;  // last: its thread uses everything above
};

}  // namespace stormo::comm
