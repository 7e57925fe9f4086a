#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include <stormo/comm/communicator.h>

namespace stormo::comm {

/// The world of a process whose job goes on in other groups: one for each epoch of its membership.
/// Operations are those of the present group. So whoever borrows this object need not know when the
/// group is another one; what depends on rank() and size() must be made again.
///
/// replace() is called by the thread that runs the operations, while none is in progress, and no
/// subgroup is left. fail() and status() may be called by any thread at any time.
class EpochWorld final : public Communicator {
 public:
  EpochWorld(std::unique_ptr<Communicator> group, Epoch epoch);

  /// Uses another group. Returns the one before, which has failed or has ended, to be destroyed.
  std::unique_ptr<Communicator> replace(std::unique_ptr<Communicator> group, Epoch epoch);
  Epoch epoch() const;
  /// Makes the present group fail if it is that of `epoch`. Any thread.
  void fail_epoch(Epoch epoch, Status cause);

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
  mutable std::mutex mutex_;  // of what any thread may call, against replace()
  std::unique_ptr<Communicator> group_;
  Epoch epoch_;
  Sink* sink_ = nullptr;
  std::uint64_t sent_before_ = 0;  // by the groups before
};

}  // namespace stormo::comm
