// A world whose group is another one in each epoch.
#include <gtest/gtest.h>
#include <stormo/comm/job/epoch_world.h>

#include <memory>
#include <vector>

namespace stormo::comm {
namespace {

std::unique_ptr<Communicator> lone() {
  auto group = join(transport::Rendezvous{});
  EXPECT_TRUE(group.ok()) << group.status().to_string();
  return std::move(group).value();
}

TEST(EpochWorld, IsThePresentGroup) {
  EpochWorld world(lone(), 1);
  std::vector<double> numbers = {1, 2};
  EXPECT_TRUE(world.all_reduce(std::span<double>(numbers), ReduceOp::kSum).ok());
  world.fail(Status(Code::kPeerLost, "rank 1 is gone"));
  EXPECT_EQ(world.all_reduce(std::span<double>(numbers), ReduceOp::kSum).code(), Code::kPeerLost);
  world.replace(lone(), 2);
  EXPECT_TRUE(world.status().ok());
  EXPECT_TRUE(world.all_reduce(std::span<double>(numbers), ReduceOp::kSum).ok());
  EXPECT_EQ(world.epoch(), 2u);
}

TEST(EpochWorld, AnOldEpochFailsNothing) {
  EpochWorld world(lone(), 3);
  world.fail_epoch(2, Status(Code::kCancelled, "epoch 2 is over"));
  EXPECT_TRUE(world.status().ok());
  world.fail_epoch(3, Status(Code::kCancelled, "epoch 3 is over"));
  EXPECT_EQ(world.status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace stormo::comm
