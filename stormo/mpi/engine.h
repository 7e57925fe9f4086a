#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <stormo/comm/communicator.h>
#include <stormo/comm/mailbox/mailbox.h>
#include <stormo/comm/operation/connector.h>
#include <stormo/comm/operation/meeting.h>
#include <stormo/comm/operation/members.h>
#include <stormo/comm/operation/operation_lane.h>
#include <stormo/mpi/execution.h>
#include <stormo/mpi/join.h>
#include <stormo/mpi/link.h>
#include <stormo/mpi/meeting_place.h>
#include <stormo/mpi/mpi_peers.h>

namespace stormo::mpi {

/// The Communicator over MPI. Collectives run one at a time, on its lane; messages go through a
/// mailbox beside them.
class Engine final : public comm::Communicator {
 public:
  /// Shared by all groups of a process.
  struct Process {
    std::string host;
    transport::Arena* arena = nullptr;  ///< outlives every use of the groups
    Options options;
    std::shared_ptr<MeetingPlace> meeting_place;
  };
  /// `taken_name`: that of a group by its members, else null.
  Engine(std::unique_ptr<Link> link, comm::Membership place, Process process,
         std::shared_ptr<const void> taken_name = nullptr);
  /// If the world was not finalized, it fails on the other ranks.
  ~Engine() override;

  int rank() const override { return link_->rank(); }
  int size() const override { return link_->size(); }
  int local_rank() const override { return place_.local_rank; }
  int local_size() const override { return place_.local_size(); }
  int cross_rank() const override { return place_.cross_rank; }
  int cross_size() const override { return static_cast<int>(place_.ranks_per_host.size()); }
  const std::string& host() const override { return process_.host; }

  const std::vector<int>& ranks_per_host() const override { return place_.ranks_per_host; }

  Result<std::unique_ptr<comm::Communicator>> subgroup(std::span<const Rank> members,
                                                       Deadline by) override;
  Result<std::unique_ptr<comm::Communicator>> group_of(std::span<const Rank> members,
                                                       const std::string& name,
                                                       Deadline by) override;
  Status run(const comm::Request& request, Deadline by) override;
  comm::Work submit(const comm::Request& request) override;

  transport::Arena& arena() override { return *process_.arena; }
  std::byte* peer_address(int, std::uint64_t) override { return nullptr; }
  Status status() const override;
  void fail(Status cause) override { link_->fail(std::move(cause)); }
  void set_section(std::string_view text) override;
  std::uint64_t bytes_sent() const override { return 0; }
  std::string algorithm(plan::GoalKind, std::uint64_t) const override { return "mpi"; }
  void set_sink(Sink* sink) override;
  Status finalize(Deadline by) override;
  Status leave() override {
    return invalid_argument("leave: over MPI all ranks end together; call finalize");
  }

 private:
  Result<std::unique_ptr<comm::Communicator>> make_group(std::span<const Rank> members,
                                                         const comm::GroupToConnect& group);
  Result<std::unique_ptr<Link>> make_link(std::span<const Rank> members,
                                          const comm::GroupToConnect& group);
  Status check_message(const comm::Request& request) const;
  std::unique_ptr<comm::Mailbox> make_mailbox();
  Status perform(const comm::Request& request, Deadline by);
  Status finish_in_turn(comm::OperationKind kind, comm::Work work, Deadline by);
  Status execute(const Execution::Call& call);
  Status conclude(const comm::Operation& operation, Status outcome);
  void record(Lane lane, const comm::Operation& operation, TimePoint start, TimePoint end);

  std::unique_ptr<Link> link_;
  const comm::Membership place_;
  const Process process_;
  const std::shared_ptr<const void> taken_name_;
  int num_subgroups_ = 0;
  comm::GroupNames names_;
  std::unique_ptr<Scratch> scratch_ = std::make_unique<Scratch>();
  std::uint64_t sequence_ = 0;
  std::atomic<Sink*> sink_{nullptr};
  std::atomic<bool> finalized_{false};

  std::mutex mutex_;
  std::string section_;  // guarded by mutex_

  MpiPeers* peers_ = nullptr;               // of the mailbox
  std::unique_ptr<comm::Mailbox> mailbox_;  // null in a group of one; its thread uses what is above
  comm::OperationLane lane_;                // last: its thread uses everything above
};

}  // namespace stormo::mpi
