// The programs in examples/ do what they are meant to show, on real processes.
#include <gtest/gtest.h>

#include "tests/unit/train/run_job.h"

namespace stormo {
namespace {

TEST(Examples, ShardedTrainingLearns) {
  for (const char* stage : {"1", "3"}) {
    EXPECT_EQ(test::run_job(2, {STORMO_EXAMPLE_FSDP, stage}), 0) << "stage " << stage;
  }
}

}  // namespace
}  // namespace stormo
