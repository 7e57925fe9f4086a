#include <stormo/train/agreement/replica_check.h>

#include <stormo/comm/agreement/agreement.h>

#include "tests/unit/train/sharded_problem.h"

namespace stormo::train {
namespace {

using comm::majority_vote, comm::Verdict;
using Looks = std::vector<std::int64_t>;

TEST(ReplicaCheck, TheMajorityIsRight) {
  EXPECT_TRUE(majority_vote(Looks{7, 7, 7}).differing.empty());
  EXPECT_EQ(majority_vote(Looks{8, 7, 7}).differing, std::vector<Rank>{0});
  EXPECT_EQ(majority_vote(Looks{7, 8, 7, 9, 7}).differing, (std::vector<Rank>{1, 3}));
  const Verdict tie = majority_vote(Looks{7, 8});
  EXPECT_FALSE(tie.majority);
  EXPECT_EQ(tie.differing, std::vector<Rank>{1});
}

TEST(ReplicaCheck, ASecondLookTellsWhatStaysFromWhatPasses) {
  const auto says = [](const Looks& second, const std::string& part) {
    return compare_looks(Looks{7, 8, 7}, second).find(part) != std::string::npos;
  };
  EXPECT_TRUE(says({7, 8, 7}, "found the same, so the values stay"));
  EXPECT_TRUE(says({7, 7, 7}, "other values on rank(s) 1, so the error is transient"));
  EXPECT_TRUE(says({9, 8, 6}, "other values on rank(s) 0, 2"));
}

TEST(ReplicaCheck, ComparesParametersAndBuffers) {
  for (const std::string wrong : {"weight", "running"}) {
    test::on_ranks(3, [&](comm::Communicator& world) {
      torch::nn::Module module;
      module.register_parameter("weight", torch::ones({5}));
      module.register_buffer("running", torch::ones({3}));
      EXPECT_TRUE(check_replicas(world, visit_all(named_state(module))).ok());
      if (world.rank() == 2) {
        (wrong == "weight" ? module.named_parameters() : module.named_buffers())[wrong].data()[1] =
            2;
      }
      const Status status = check_replicas(world, visit_all(named_state(module))).status();
      EXPECT_EQ(status.code(), Code::kMismatch);
      for (const std::string& part : {std::string("rank(s) 2 differ from those of the majority"),
                                      "first in '" + wrong + "'", std::string("values stay")}) {
        EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
      }
    });
  }
}

}  // namespace
}  // namespace stormo::train
