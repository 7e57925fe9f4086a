// A world of one rank, as a program without a launcher has it.
#include <gtest/gtest.h>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);

void use_subgroups_of(Communicator& world) {
  auto made = world.subgroup(std::vector<Rank>{0}, Deadline::after(kLong));
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const std::unique_ptr<Communicator> group = std::move(*made);
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(&group->arena(), &world.arena());
  std::vector<double> x(50'000, 3);
  const Buffer buffer = x;
  Work pending = group->all_reduce_async({&buffer, 1}, ReduceOp::kAverage);
  EXPECT_OK(world.barrier(Deadline::after(kLong)));
  EXPECT_OK(pending.wait(Deadline::after(kLong)));
  EXPECT_EQ(x, std::vector<double>(50'000, 3));
  auto inner = group->subgroup(std::vector<Rank>{0}, Deadline::after(kLong));
  ASSERT_TRUE(inner.ok()) << inner.status().to_string();
  EXPECT_OK((*inner)->barrier(Deadline::after(kLong)));
  EXPECT_OK((*inner)->finalize(Deadline::after(kLong)));
  EXPECT_OK(group->finalize(Deadline::after(kLong)));
}

TEST(LoneRank, HasSubgroupsOfOne) {
  auto world = join({});
  ASSERT_TRUE(world.ok()) << world.status().to_string();
  use_subgroups_of(**world);
  EXPECT_OK((*world)->finalize(Deadline::after(kLong)));
}

TEST(LoneRank, OfThreadsToo) {
  auto world = make_inproc_group(1);
  ASSERT_TRUE(world.ok()) << world.status().to_string();
  use_subgroups_of(*world->front());
  EXPECT_OK(world->front()->finalize(Deadline::after(kLong)));
}

}  // namespace
}  // namespace stormo::comm
