#include <stormo/train/prepare/table_features.h>

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include <stormo/train/prepare/target_hint.h>

namespace stormo::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

TEST(ScaleOf, IsMeanAndStandardDeviation) {
  const Preprocessing::Scale scale = scale_of(std::vector<double>{1, 2, kMissing, 3, 6});
  EXPECT_EQ(scale.mean, 3);
  EXPECT_NEAR(scale.stddev, std::sqrt(14.0 / 4), 1e-15);
  EXPECT_EQ(scale_of(std::vector<double>{kMissing}), Preprocessing::Scale());
}

// Their mean differs from them by a rounding, and so would their deviation from 0.
TEST(ScaleOf, AConstantKeepsItsUnit) {
  for (const double constant : {14.62, 0.1, -1e300 / 3, 1e-320, 0.0, 1e300}) {
    for (const std::size_t count : {1u, 3u, 1000u}) {
      const auto scale = scale_of(std::vector<double>(count, constant));
      EXPECT_EQ(scale.stddev, 1) << constant;
      EXPECT_EQ(scale.mean, constant);
    }
  }
  const auto sums = scale_of(std::vector<double>{0.1 + 0.2, 0.3, 0.1 * 3});
  EXPECT_EQ(sums.stddev, 1);
  EXPECT_NEAR(scale_of(std::vector<double>{1.7e9, 1.7e9 + 2}).stddev, 1, 1e-6);  // seconds
}

TEST(ScaleOf, HoldsVeryLargeAndVerySmallNumbers) {
  for (const double unit : {1e200, 1e-200, 1e307}) {
    const auto scale = scale_of(std::vector<double>{unit, 3 * unit});
    EXPECT_NEAR(scale.mean / unit, 2, 1e-12);
    EXPECT_NEAR(scale.stddev / unit, 1, 1e-12);
  }
}

data::Table table_of(std::vector<std::string> columns, std::vector<double> features,
                     std::vector<std::vector<std::string>> texts = {}) {
  data::Table table;
  table.texts = std::move(texts);
  table.texts.resize(columns.size());
  const std::size_t rows = features.size() / columns.size();
  for (std::size_t row = 0; row < rows; ++row) {
    table.lines.push_back(static_cast<std::int64_t>(row + 2));
  }
  table.columns = std::move(columns);
  table.features = std::move(features);
  return table;
}

TEST(TableFeatures, TextsBecomeAFeatureEach) {
  const data::Table training =
      table_of({"city", "a"}, {0, 5, 1, 6, 0, 7}, {{"Rome", "Oslo", "Bonn"}});
  Preprocessing settled;
  ASSERT_TRUE(settle_columns({}, training, settled).ok());
  EXPECT_THAT(settled.categories.at("city"), ElementsAre("Oslo", "Rome"));  // Bonn is in no row
  EXPECT_THAT(settled.input, ElementsAre(3));
  const auto features = feature_tensor(training, settled, torch::kFloat32, "t.csv");
  ASSERT_TRUE(features.ok()) << features.status().to_string();
  EXPECT_TRUE(features->equal(torch::tensor({{0.F, 1.F, 5.F}, {1.F, 0.F, 6.F}, {0.F, 1.F, 7.F}})));
  EXPECT_THAT(unknown_texts(training, settled, "t.csv"), IsEmpty());
  const data::Table other = table_of({"city", "a"}, {0, 5, 1, 6}, {{"Paris", "Oslo"}});
  EXPECT_TRUE(feature_tensor(other, settled, torch::kFloat64, "o.csv")
                  ->equal(torch::tensor({{0., 0., 5.}, {1., 0., 6.}}, torch::kFloat64)));
  EXPECT_THAT(unknown_texts(other, settled, "o.csv"),
              ElementsAre(AllOf(HasSubstr("o.csv: 1 values"), HasSubstr("line 2, \"Paris\""))));
}

TEST(TableFeatures, MissingNumbersBecomeTheMeanAndMayBeIndicated) {
  const data::Table training = table_of({"a", "b"}, {1, 2, kMissing, 4, 3, 6});
  Recipe recipe;
  recipe.data.missing = "indicator";
  Preprocessing settled;
  ASSERT_TRUE(settle_columns(recipe, training, settled).ok());
  EXPECT_THAT(settled.fills, ElementsAre(2, 4));
  EXPECT_THAT(settled.indicators, ElementsAre("a"));
  const auto features = feature_tensor(training, settled, torch::kFloat64, "t.csv");
  ASSERT_TRUE(features.ok()) << features.status().to_string();
  EXPECT_TRUE(
      features->equal(torch::tensor({{1., 0., 2.}, {2., 1., 4.}, {3., 0., 6.}}, torch::kFloat64)));
  recipe.data.missing = "mean";
  recipe.data.standardise = true;
  Preprocessing scaled;
  ASSERT_TRUE(settle_columns(recipe, training, scaled).ok());
  EXPECT_THAT(scaled.indicators, IsEmpty());
  // b lacks a number here, and nowhere in the training
  const data::Table other = table_of({"a", "b"}, {kMissing, kMissing});
  EXPECT_TRUE(feature_tensor(other, scaled, torch::kFloat64, "o.csv")
                  ->equal(torch::zeros({1, 2}, torch::kFloat64)));
  EXPECT_THAT(settle_columns(recipe, other, scaled).message(), HasSubstr("has no number at all"));
}

TEST(TableFeatures, NameLineAndColumnOfWhatTheTypeCannotHold) {
  const data::Table table = table_of({"a", "b"}, {1, 2, 3, 1e39});
  Preprocessing settled;
  ASSERT_TRUE(settle_columns({}, table, settled).ok());
  const Status beyond = feature_tensor(table, settled, torch::kFloat32, "t.csv").status();
  EXPECT_THAT(beyond.message(), AllOf(HasSubstr("t.csv:3: b: 1e+39"), HasSubstr("float32")));
  EXPECT_TRUE(feature_tensor(table, settled, torch::kFloat64, "t.csv").ok());
  Recipe recipe;
  recipe.data.standardise = true;
  Preprocessing scaled;
  ASSERT_TRUE(settle_columns(recipe, table, scaled).ok());
  EXPECT_TRUE(feature_tensor(table, scaled, torch::kFloat32, "t.csv").ok());
}

TEST(TargetHint, GuessesTheOtherLoss) {
  std::vector<double> prices, ratings, classes, many;
  for (int i = 0; i < 100; ++i) {
    prices.push_back(i * 1.25);
    ratings.push_back(i % 5 + 1);
    classes.push_back(i % 3);
    many.push_back(1000 + i);
  }
  EXPECT_THAT(target_hint(prices, "cross_entropy"), HasSubstr("train.loss = \"mse\""));
  EXPECT_THAT(target_hint(many, "cross_entropy"), HasSubstr("100 different numbers"));
  EXPECT_THAT(target_hint(classes, "mse"), HasSubstr("whole numbers 0 to 2"));
  EXPECT_EQ(target_hint(classes, "cross_entropy"), "");
  EXPECT_EQ(target_hint(ratings, "cross_entropy"), "");
  EXPECT_EQ(target_hint(ratings, "mse"), "");
  EXPECT_EQ(target_hint(prices, "mse"), "");
}

}  // namespace
}  // namespace stormo::train
