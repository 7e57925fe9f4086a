#include <stormo/train/predict/class_report.h>

#include <gmock/gmock.h>

#include <stormo/base/rng.h>

namespace stormo::train {
namespace {

using ::testing::ElementsAre;

/// Outputs of which the largest is that of the class named.
torch::Tensor outputs(const std::vector<std::int64_t>& predicted, std::int64_t classes) {
  return torch::one_hot(torch::tensor(predicted, torch::kInt64), classes).to(torch::kFloat32);
}

TEST(ClassReport, CountsAndTakesTheMeanF1) {
  ClassReport report(4);
  report.add(outputs({0, 1, 1, 2}, 4), torch::tensor({0, 0, 1, 2}, torch::kInt64));
  report.add(outputs({2}, 4), torch::tensor({1}, torch::kInt64));
  EXPECT_THAT(report.confusion(), ElementsAre(ElementsAre(1, 1, 0, 0), ElementsAre(0, 1, 1, 0),
                                              ElementsAre(0, 0, 1, 0), ElementsAre(0, 0, 0, 0)));
  // 2 TP / (2 TP + FP + FN): 2/3, 2/4, 2/3; class 3 does not occur
  EXPECT_NEAR(report.mean_f1(), (2.0 / 3 + 0.5 + 2.0 / 3) / 3, 1e-15);
  EXPECT_FALSE(report.auc());
}

TEST(ClassReport, AucIsTheShareOfPairsInTheRightOrder) {
  Rng rng(5, "auc");
  ClassReport report(2);
  std::vector<std::pair<double, int>> samples;
  for (int i = 0; i < 60; ++i) {
    const auto score = static_cast<double>(rng.below(12));  // many are equal
    const int is = rng.below(20) < 5 + static_cast<std::uint64_t>(score) ? 1 : 0;
    samples.emplace_back(score, is);
    report.add(torch::tensor({{1.0, 1.0 + score}}, torch::kFloat64),
               torch::tensor({is}, torch::kInt64));
  }
  double right = 0, pairs = 0;
  for (const auto& [zero, is_zero] : samples) {
    for (const auto& [one, is_one] : samples) {
      if (is_zero != 0 || is_one != 1) continue;
      right += one > zero ? 1 : one == zero ? 0.5 : 0;
      ++pairs;
    }
  }
  ASSERT_GT(pairs, 100);
  EXPECT_NEAR(report.auc().value(), right / pairs, 1e-12);
}

TEST(ClassReport, OfOneClassHasNoAuc) {
  ClassReport report(2);
  report.add(outputs({0, 1}, 2), torch::tensor({1, 1}, torch::kInt64));
  EXPECT_FALSE(report.auc());
}

}  // namespace
}  // namespace stormo::train
