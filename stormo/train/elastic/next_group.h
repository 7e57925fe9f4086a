#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/protocol/elastic/elastic_message.h>

namespace stormo::train {

/// The group of the next epoch, made by a thread of its own while the present one is in use
/// (protocol::PrepareGroup). The thread also destroys groups that are not used any more. What is
/// called must outlive it.
class NextGroup {
 public:
  using Group = std::unique_ptr<comm::Communicator>;
  struct Calls {
    std::function<Result<Group>(const protocol::ElasticRecord&)> join;  ///< blocks
    std::function<void(const protocol::ElasticRecord&)> abort;          ///< ends it
    std::function<void(const protocol::ElasticRecord&)> ready;          ///< on the thread
  };
  explicit NextGroup(Calls calls);
  ~NextGroup() { end(); }
  NextGroup(const NextGroup&) = delete;
  NextGroup& operator=(const NextGroup&) = delete;

  /// Makes the group of this wish instead of any before. Any thread; does not block.
  void prepare(const protocol::ElasticRecord& wish);
  /// The group that was made for this epoch. What else was made or is being made for it, or for one
  /// before it, is given up. Null: this one was not made.
  Group take(const protocol::ElasticRecord& record);
  /// Destroys a group that nobody uses. Does not block.
  void discard(Group group);
  /// Ends the thread. Nothing is made or called any more.
  void end();

 private:
  void run();
  void make(std::unique_lock<std::mutex>& lock);
  void give_up(std::unique_lock<std::mutex>& lock);

  const Calls calls_;
  std::mutex mutex_;
  std::condition_variable changed_;
  protocol::ElasticRecord wanted_;  // epoch 0: none
  protocol::ElasticRecord making_;  // by the thread; epoch 0: none
  Group made_;                      // of wanted_
  std::vector<Group> discarded_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace stormo::train
