#include <stormo/comm/job/epoch_world.h>

#include <utility>

namespace stormo::comm {

EpochWorld::EpochWorld(std::unique_ptr<Communicator> group, Epoch epoch)
    : group_(std::move(group)), epoch_(epoch) {}

std::unique_ptr<Communicator> EpochWorld::replace(std::unique_ptr<Communicator> group,
                                                  Epoch epoch) {
  std::unique_ptr<Communicator> before;
  {
    const std::lock_guard lock(mutex_);
    sent_before_ += group_->bytes_sent();
    before = std::exchange(group_, std::move(group));
    epoch_ = epoch;
  }
  group_->set_sink(sink_);
  return before;
}

Epoch EpochWorld::epoch() const {
  const std::lock_guard lock(mutex_);
  return epoch_;
}

void EpochWorld::fail_epoch(Epoch epoch, Status cause) {
  const std::lock_guard lock(mutex_);
  if (epoch == epoch_) group_->fail(std::move(cause));
}

Status EpochWorld::status() const {
  const std::lock_guard lock(mutex_);
  return group_->status();
}

void EpochWorld::fail(Status cause) {
  const std::lock_guard lock(mutex_);
  group_->fail(std::move(cause));
}

void EpochWorld::set_sink(Sink* sink) {
  sink_ = sink;
  group_->set_sink(sink);
}

}  // namespace stormo::comm
