#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/comm/job/epoch_store.h>
#include <stormo/comm/job/joining.h>
#include <stormo/comm/watch/job_watch.h>
#include <stormo/transport/health.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/store/rendezvous.h>
#include <stormo/transport/store/store.h>

namespace stormo::comm {

/// The world of a process whose job goes on in other groups: one for each epoch of its membership.
/// Operations are those of the present group. So whoever borrows this object need not know when the
/// group is another one; what depends on rank() and size() must be made again.
///
/// Each process serves a Store as long as it has this object. The ranks of a group meet in that of
/// its rank 0: nobody else is needed.
///
/// enter() and take_former() are called by the thread that runs the operations, while none is in
/// progress, and no subgroup is left. make(), destroy(), fail_epoch(), fail() and status() may be
/// called by any thread at any time.
class EpochWorld final : public Communicator {
 public:
  struct Options {
    transport::JobSettings settings{};
    transport::Secret secret{};
    int local_size = 1;            ///< how many ranks share the memory of this host
    std::string listen = "unix:";  ///< for the Store, see StoreServer::Options
    /// After which the rank that serves the Store counts as lost if it does not answer.
    Duration silence = std::chrono::seconds(2);
  };
  /// Epoch 0, in which this process is alone.
  static Result<std::unique_ptr<EpochWorld>> open(Options options);

  /// Address of the Store of this process.
  transport::StoreAddress store() const { return own_store_->address(); }
  /// Makes the group of epoch `r.epoch`, and enters it. `r.store` is that of its rank 0. Blocks at
  /// most for r.join_timeout. The group before, which has failed or has ended, stays until
  /// take_former() or the next enter(): others may still wait in it.
  Status enter(const transport::Rendezvous& r);
  /// Enters a group that make() has made.
  Status enter(EpochGroup made, Epoch epoch);
  EpochGroup take_former() { return std::exchange(former_, {}); }
  /// Makes a group of epoch `r.epoch` beside the present one. Of several that are tried for one
  /// epoch each has a number, 1 to 255. Whoever makes `health` fail ends this at once. Blocks at
  /// most for r.join_timeout.
  Result<EpochGroup> make(transport::Rendezvous r, std::uint32_t number,
                          std::shared_ptr<transport::Health> health) const;
  /// Destroys a group in which nobody waits any more, and removes what groups of earlier epochs
  /// have left in the Store of this process. Blocks for a second at most. Any thread.
  void destroy(EpochGroup group);
  Epoch epoch() const;
  /// Makes the group of `epoch` fail, the present one, or one that is being made or will be, and
  /// tells its other ranks. Blocks for a moment at most.
  void fail_epoch(Epoch epoch, const Status& cause);

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  int local_rank() const override { return group_->local_rank(); }
  int local_size() const override { return group_->local_size(); }
  int cross_rank() const override { return group_->cross_rank(); }
  int cross_size() const override { return group_->cross_size(); }
  const std::string& host() const override { return group_->host(); }
  const std::vector<int>& ranks_per_host() const override { return group_->ranks_per_host(); }
  Result<std::unique_ptr<Communicator>> subgroup(std::span<const Rank> members,
                                                 Deadline by) override {
    return group_->subgroup(members, by);
  }
  Result<std::unique_ptr<Communicator>> group_of(std::span<const Rank> members,
                                                 const std::string& name, Deadline by) override {
    return group_->group_of(members, name, by);
  }
  Status run(const Request& request, Deadline by) override { return group_->run(request, by); }
  Work submit(const Request& request) override { return group_->submit(request); }
  transport::Arena& arena() override { return group_->arena(); }
  std::byte* peer_address(int peer, std::uint64_t offset) override {
    return group_->peer_address(peer, offset);
  }
  Status status() const override;
  void fail(Status cause) override;
  void set_section(std::string_view text) override { group_->set_section(text); }
  std::uint64_t bytes_sent() const override { return sent_before_ + group_->bytes_sent(); }
  std::string algorithm(plan::GoalKind goal, std::uint64_t bytes) const override {
    return group_->algorithm(goal, bytes);
  }
  void set_sink(Sink* sink) override;
  Status finalize(Deadline by) override { return group_->finalize(by); }
  Status leave() override { return group_->leave(); }

 private:
  using SharedHealth = std::shared_ptr<transport::Health>;
  EpochWorld(Options options, std::unique_ptr<EpochStore> own_store,
             std::unique_ptr<Communicator> group);
  Result<SharedHealth> begin(Epoch epoch);

  const Options options_;
  const std::unique_ptr<EpochStore> own_store_;
  EpochGroup former_;
  mutable std::mutex mutex_;  // of what any thread may call, against enter()
  std::unique_ptr<Communicator> group_;
  Epoch epoch_ = 0;
  std::shared_ptr<JobWatch> job_watch_;  // of group_; null: it is of this process alone
  SharedHealth health_;                  // of group_; null in epoch 0
  Epoch next_epoch_ = 0;                 // of a group that enter() makes
  SharedHealth next_health_;
  Epoch failed_epoch_ = 0;  // the last one that was to fail, and why
  Status failed_cause_;
  Sink* sink_ = nullptr;
  std::uint64_t sent_before_ = 0;  // by the groups before
};

}  // namespace stormo::comm
