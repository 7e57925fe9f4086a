#include <stormo/train/evaluation/best_score.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace stormo::train {
namespace {

Evaluation with(double loss, double accuracy) {
  return {.loss = loss, .accuracy = accuracy, .mae = {}, .r2 = {}, .samples = 1};
}

TEST(BestScore, TakesTheLeastLossOrTheLargestAccuracy) {
  BestScore loss("loss"), accuracy("accuracy"), none("none");
  EXPECT_TRUE(loss.take(with(2, 0.5), 10));
  EXPECT_TRUE(accuracy.take(with(2, 0.5), 10));
  EXPECT_FALSE(none.take(with(2, 0.5), 10));
  EXPECT_TRUE(loss.take(with(1, 0.4), 20));
  EXPECT_FALSE(accuracy.take(with(1, 0.4), 20));
  EXPECT_FALSE(loss.take(with(1, 0.6), 30));  // equal is no better
  EXPECT_TRUE(accuracy.take(with(1, 0.6), 30));
  EXPECT_EQ(loss.step(), 20);
  EXPECT_EQ(loss.value(), 1);
  EXPECT_EQ(loss.since(), 1);
  EXPECT_EQ(accuracy.step(), 30);
  EXPECT_EQ(accuracy.since(), 0);
  EXPECT_EQ(none.step(), 0);
}

TEST(BestScore, IsNeverWhatIsNoNumber) {
  BestScore best("loss");
  EXPECT_FALSE(best.take(with(NAN, 1), 1));
  EXPECT_FALSE(best.take(with(std::numeric_limits<double>::infinity(), 1), 2));
  EXPECT_EQ(best.since(), 2);
  EXPECT_TRUE(best.take(with(1e30, 1), 3));
  EXPECT_FALSE(best.take(with(NAN, 1), 4));
  BestScore accuracy("accuracy");
  EXPECT_FALSE(accuracy.take({.loss = 1, .accuracy = {}, .mae = {}, .r2 = {}, .samples = 1}, 1));
}

TEST(BestScore, GoesOnFromWhatACheckpointKeeps) {
  BestScore before("loss");
  before.take(with(0.1, 0), 5);
  before.take(with(0.2, 0), 6);
  BestScore after("loss");
  after.restore(before.to_json());
  EXPECT_EQ(after.to_json(), before.to_json());
  EXPECT_FALSE(after.take(with(0.15, 0), 7));
  EXPECT_EQ(after.since(), 2);
  for (const std::string& foreign : {before.to_json(), std::string("[]"), std::string("{"),
                                     std::string(R"({"metric":"accuracy","step":-1})")}) {
    BestScore other("accuracy");
    other.restore(foreign);
    EXPECT_EQ(other.step(), 0) << foreign;
  }
}

}  // namespace
}  // namespace stormo::train
