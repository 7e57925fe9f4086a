#include <stormo/train/server_store/shard_calls.h>

#include <stormo/comm/group/group.h>

namespace stormo::train {

void ShardCalls::begin_round() {
  count_ = 0;
  auto* const group = session_ == nullptr ? dynamic_cast<comm::Group*>(&world_) : nullptr;
  activity_ = group == nullptr ? nullptr : group->add_activity("the server shards", worker_);
}

void ShardCalls::begin(comm::Operation::AtShards what) {
  if (depth_++ > 0) return;
  if (session_ != nullptr) session_->pulse().wait();
  if (activity_) activity_->begin({.sequence = ++count_, .at_shards = what});
}

void ShardCalls::end() {
  if (--depth_ > 0) return;
  if (session_ != nullptr) session_->pulse().get_on();
  if (activity_) activity_->end();
}

}  // namespace stormo::train
