#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/own_process.h>
#include <stormo/comm/communicator.h>
#include <stormo/comm/group/inline_payload.h>
#include <stormo/comm/group/memory_map.h>
#include <stormo/comm/group/posting.h>
#include <stormo/comm/group/prepared_call.h>
#include <stormo/comm/mailbox/mailbox.h>
#include <stormo/comm/operation/connector.h>
#include <stormo/comm/operation/meeting.h>
#include <stormo/comm/operation/members.h>
#include <stormo/comm/operation/operation.h>
#include <stormo/comm/operation/operation_lane.h>
#include <stormo/comm/program/execute.h>
#include <stormo/comm/program/program.h>
#include <stormo/comm/selection/selection.h>
#include <stormo/comm/watch/activity.h>
#include <stormo/comm/watch/job_watch.h>

namespace stormo::comm {

/// Stormo's own engine: a Communicator over shared memory inside hosts and a transport between
/// hosts.
class Group final : public Communicator {
 public:
  struct Parts {
    Rank rank = 0;
    std::vector<int> ranks_per_host;  ///< ranks are numbered host by host
    std::string host = "localhost";
    std::shared_ptr<transport::Health> health;
    Connections connections;
    std::unique_ptr<transport::StoreServer> server;  ///< when this process hosts the Store
    /// Of the whole job. Null for threads of one process and a world of one rank: failures are then
    /// only recorded in `health`.
    std::shared_ptr<JobWatch> job_watch;
    std::shared_ptr<Connector>
        connector;  ///< makes the connections of subgroups; null: subgroups have at most one rank
    std::shared_ptr<Activities> activities;  ///< of the world and its subgroups; null: a fresh one
    std::vector<Rank> world_ranks;           ///< of a subgroup, by rank; empty: those of the world
    std::string key;                         ///< of a subgroup: no other group of the job has it
    std::string name;  ///< of a subgroup, for messages; no other group of the job has it
    std::shared_ptr<const void> taken_name;  ///< of GroupNames; null: none
    /// The rules for choosing algorithms; equal on all ranks. Null: the built-in ones.
    std::shared_ptr<const Selection> selection;
  };
  explicit Group(Parts parts);
  ~Group() override;

  int rank() const override { return parts_.rank; }
  int size() const override { return static_cast<int>(hosts_.host.size()); }
  int local_rank() const override { return parts_.connections.host_group->rank(); }
  int local_size() const override { return parts_.connections.host_group->size(); }
  int cross_rank() const override { return hosts_.host[static_cast<std::size_t>(parts_.rank)]; }
  int cross_size() const override { return static_cast<int>(parts_.ranks_per_host.size()); }
  const std::string& host() const override { return parts_.host; }
  const std::vector<int>& ranks_per_host() const override { return parts_.ranks_per_host; }

  Result<std::unique_ptr<Communicator>> subgroup(std::span<const Rank> members,
                                                 Deadline by) override;
  Result<std::unique_ptr<Communicator>> group_of(std::span<const Rank> members,
                                                 const std::string& name, Deadline by) override;
  Status run(const Request& request, Deadline by) override;
  Work submit(const Request& request) override;

  transport::Arena& arena() override { return parts_.connections.host_group->arena(); }
  std::byte* peer_address(int peer, std::uint64_t offset) override {
    return parts_.connections.host_group->address(peer, offset);
  }
  Status status() const override;
  void fail(Status cause) override;
  void set_section(std::string_view text) override;
  std::uint64_t bytes_sent() const override;
  std::string algorithm(plan::GoalKind goal, std::uint64_t bytes) const override;
  void set_sink(Sink* sink) override;
  Status finalize(Deadline by) override;
  Status leave() override;
  /// How long an operation may take whose caller gives no deadline, once those submitted before it
  /// are complete: then the group fails. At first without limit. Any thread.
  void set_timeout(Duration timeout) { timeout_ = timeout; }
  /// For calls that are no operations of the group, but in which this rank waits for others: who
  /// looks for stalls sees what is recorded there. `rank`: its number among those that make them.
  std::shared_ptr<Activity> add_activity(std::string name, Rank rank) {
    return parts_.activities->add(std::move(name), rank);
  }

  /// The rules for choosing algorithms.
  const Selection& selection() const {
    return parts_.selection ? *parts_.selection : Selection::defaults();
  }
  HostLayout host_layout() const { return host_layout_; }
  /// Whether the operation runs without an algorithm, because all data fit on the boards.
  bool posts_whole(const Request& request) const {
    return cross_size() == 1 && request.algorithm.empty() && inline_.fits(request);
  }

 private:
  /// Whether it is a scan that every rank makes of its part of all buffers of this host: no
  /// algorithm says this, and the selection does not change it.
  bool in_one_pass(const Request& request) const {
    return goal_of(request.kind) == plan::GoalKind::kScan && cross_size() == 1 &&
           (request.algorithm.empty() || size() == 1);
  }
  PreparedCall& prepared_for(OperationKind kind) {
    return prepared_[static_cast<std::size_t>(kind)];
  }
  /// OK in the process that made the group; an error in a forked child.
  Status check_process() const { return process_.is_here() ? Status() : refuse_child(); }
  Status refuse_child() const;
  /// By which its messages are told from its collectives.
  std::string messages_name() const {
    return parts_.name.empty() ? "messages" : "messages of " + parts_.name;
  }
  /// The group has ended: what tells others what this rank does says nothing of it any more.
  void remove_activities() {
    parts_.activities->remove(*activity_);
    parts_.activities->remove(*message_activity_);
  }
  /// What the job watch tells others of this group when this rank leaves it.
  Status tell_that_it_leaves();
  Status check_can_connect(std::string_view call) const;
  Rank world_rank(Rank rank) const {
    return parts_.world_ranks.empty() ? rank : parts_.world_ranks[static_cast<std::size_t>(rank)];
  }
  Result<Connections> connect(const Membership& membership, Deadline by);
  Result<std::unique_ptr<Communicator>> make_group(std::span<const Rank> members,
                                                   const GroupToConnect& group, Deadline by);
  static bool has_turns(const Request& request) {
    return in_place(request.kind) && request.in.size() > Posting::kMaxBuffers;
  }
  bool needs_token(const Request& request) const {
    const bool is_barrier = request.kind == OperationKind::kBarrier ||
                            request.kind == OperationKind::kFinalize ||
                            request.kind == OperationKind::kSubgroup;
    return is_barrier && cross_size() > 1 && request.in.empty();
  }
  /// Of an operation that begins now.
  Deadline limit(Deadline by = Deadline::never()) const {
    const Duration timeout = timeout_;
    return by.is_never() && timeout != Duration::max() ? Deadline::after(timeout) : by;
  }
  /// The time, if anybody wants to know; else zero.
  TimePoint now() const {
    return sink_ == nullptr ? TimePoint{} : std::chrono::steady_clock::now();
  }

  // call.cc: how a call runs
  Status perform(const Request& request, Deadline by);
  Status perform_in_turns(const Request& request, Deadline by);
  Status perform_with_token(const Request& request, Deadline by);
  Status run_collective(const Request& request, Deadline by, PreparedCall& call);
  Status shift_right(const Request& request, Deadline by);
  Status post(const Request& request, PreparedCall& call);
  Status wait_for(LocalRange whose, Deadline by);
  Status mismatch() const;
  Result<double> total_weight(const Request& request, Deadline by);
  void weigh_scales(const Request& request, PreparedCall& call, double weight_of_all) const;
  Status run_program(const Request& request, Deadline by, PreparedCall& call);
  Status run_in_pieces(const Request& request, Deadline by, const Program& program);
  Status give_up(const Operation& operation, Status outcome);
  Status cancel();
  void record(Lane lane, const Operation& operation, TimePoint start, TimePoint end);

  // message.cc: messages go beside the collectives
  Status check_message(const Request& request) const;
  Work submit_message(const Request& request);
  Status run_message(const Request& request, Deadline by,
                     Mailbox::Channel channel = Mailbox::Channel::kUser);
  std::unique_ptr<Mailbox> make_mailbox();

  // prepare.cc: what is found once for calls of the same form
  Status prepare(const Request& request, PreparedCall& call, const Program* of_whole = nullptr);
  Status prepare_collective(const Request& request, PreparedCall& call, const Program* of_whole);
  Status choose_program(const Request& request, PreparedCall& call);
  void describe_operands(const Request& request, PreparedCall& call) const;
  Result<Choice> choice_for(const Request& request, std::uint64_t bytes) const;
  Result<const Program*> program_for(const Request& request, Choice choice);
  Result<Program> compile_for(const Request& request, const Choice& choice) const;

  const OwnProcess process_;
  Parts parts_;
  HostMap hosts_;
  HostLayout host_layout_;
  std::array<PreparedCall, kNumOperationKinds> prepared_;
  PreparedCall piece_;    ///< of a large private buffer
  PreparedCall weights_;  ///< of the sum of weights before an average between hosts
  InlinePayload inline_;
  MemoryMap memory_;
  Workspace workspace_;
  Executor executor_;
  struct ProgramKey {
    OperationKind kind;
    Rank root;
    Choice choice;
    auto operator<=>(const ProgramKey&) const = default;
  };
  std::map<ProgramKey, Program> programs_;
  std::uint64_t sequence_ = 0;
  bool ended_early_ = false;  ///< the last operation, before every rank of this host called it
  std::atomic<Sink*> sink_{nullptr};
  std::atomic<bool> finalized_{false};
  std::atomic<Duration> timeout_{Duration::max()};

  int num_subgroups_ = 0;
  GroupNames names_;

  std::shared_ptr<Activity> activity_;
  std::shared_ptr<Activity> message_activity_;
  mutable std::mutex mutex_;
  Status first_cause_;  // guarded by mutex_

  std::unique_ptr<Mailbox> mailbox_;  // null in a group of one; its threads use what is above
  OperationLane lane_;                // last: its thread uses everything above
};

}  // namespace stormo::comm
