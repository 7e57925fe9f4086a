#include <stormo/data/subset.h>

#include <gmock/gmock.h>

#include <numeric>
#include <set>

#include <stormo/data/tensor_dataset.h>

namespace stormo::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Subset, HasTheSamplesThatItNames) {
  const torch::Tensor rows = torch::arange(12, torch::kFloat32).view({6, 2});
  const std::shared_ptr<const Dataset> all =
      TensorDataset::create(rows, torch::tensor({0, 1, 2, 0, 1, 2}, torch::kInt64), torch::kFloat32)
          .take_or_throw();
  const Subset some(all, {1, 4, 5});
  EXPECT_EQ(some.size(), 3);
  const Batch batch = some.get(std::vector<std::int64_t>{2, 0}, 0);
  EXPECT_TRUE(batch.input.equal(torch::stack({rows[5], rows[1]})));
  EXPECT_THAT(some.strata().all(), ElementsAre(1, 1, 2));
  EXPECT_EQ(some.fingerprint(), Subset(all, {1, 4, 5}).fingerprint());
  EXPECT_NE(some.fingerprint(), Subset(all, {1, 3, 5}).fingerprint());
}

TEST(HoldOut, GivesEachSampleToOnePart) {
  for (const auto& [samples, validation, test] :
       {std::tuple{10, 0.1, 0.2}, {101, 0.25, 0.0}, {7, 0.0, 0.5}, {3, 0.3, 0.3}}) {
    const auto parts = hold_out(samples, validation, test, 1);
    ASSERT_TRUE(parts.ok()) << parts.status().to_string();
    EXPECT_EQ(std::ssize(parts->validation), std::llround(samples * validation));
    EXPECT_EQ(std::ssize(parts->test), std::llround(samples * test));
    std::vector<std::int64_t> all;
    for (const auto* part : {&parts->training, &parts->validation, &parts->test}) {
      EXPECT_TRUE(std::ranges::is_sorted(*part));
      all.insert(all.end(), part->begin(), part->end());
    }
    std::ranges::sort(all);
    std::vector<std::int64_t> expected(static_cast<std::size_t>(samples));
    std::iota(expected.begin(), expected.end(), std::int64_t{0});
    EXPECT_EQ(all, expected);
  }
}

TEST(HoldOut, DependsOnTheSeedAlone) {
  EXPECT_EQ(hold_out(100, 0.2, 0.1, 7)->test, hold_out(100, 0.2, 0.1, 7)->test);
  EXPECT_NE(hold_out(100, 0.2, 0.1, 7)->test, hold_out(100, 0.2, 0.1, 8)->test);
}

TEST(HoldOut, RefusesPartsWithoutSamples) {
  EXPECT_THAT(hold_out(4, 0.1, 0, 1).status().message(), HasSubstr("without any"));
  EXPECT_FALSE(hold_out(2, 0.5, 0.5, 1).ok());
  EXPECT_TRUE(hold_out(2, 0.5, 0, 1).ok());
}

}  // namespace
}  // namespace stormo::data
