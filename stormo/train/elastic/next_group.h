#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/job/joining.h>
#include <stormo/protocol/elastic/elastic_message.h>
#include <stormo/transport/health.h>

namespace stormo::train {

/// The group of the next epoch, made by a thread of its own while the present one is in use
/// (protocol::PrepareGroup). The thread also destroys groups that are not used any more. What is
/// called must outlive it.
class NextGroup {
 public:
  using Group = comm::EpochGroup;
  struct Calls {
    /// Blocks until the group is there, at most until the health fails.
    std::function<Result<Group>(const protocol::ElasticRecord&, std::shared_ptr<transport::Health>)>
        join;
    std::function<void(const protocol::ElasticRecord&)> ready;  ///< on the thread, as destroy()
    std::function<void(Group)> destroy;  ///< of a group that nobody uses; blocks
  };
  explicit NextGroup(Calls calls);
  ~NextGroup() { end(); }
  NextGroup(const NextGroup&) = delete;
  NextGroup& operator=(const NextGroup&) = delete;

  /// Makes the group of this wish. Any before is given up. Any thread; does not block.
  void prepare(const protocol::ElasticRecord& wish);
  /// The group that was made for this epoch. What else was made or is being made for it, or for one
  /// before it, is given up. None: this one was not made.
  Group take(const protocol::ElasticRecord& record);
  /// This epoch is over: what was made or is being made for it, or for one before it, is given up.
  /// Any thread; does not block.
  void give_up(Epoch epoch);
  /// Destroys a group that nobody uses. Does not block.
  void discard(Group group);
  /// Ends the thread. Nothing is made or called any more.
  void end();

 private:
  void run();
  void make(std::unique_lock<std::mutex>& lock);
  void drop();

  const Calls calls_;
  std::mutex mutex_;
  std::condition_variable changed_;
  protocol::ElasticRecord wanted_;             // epoch 0: none
  std::shared_ptr<transport::Health> making_;  // of what the thread makes; null: nothing
  Group made_;                                 // of wanted_
  std::vector<Group> discarded_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace stormo::train
