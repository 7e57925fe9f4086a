#include <stormo/data/image/image_transform.h>

#include <gmock/gmock.h>

#include <map>
#include <set>
#include <utility>

#include <stormo/data/sampler.h>
#include <stormo/data/tensor_dataset.h>

namespace stormo::data {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kImages = 24, kChannels = 2, kHeight = 5, kWidth = 4;
const std::vector<std::int64_t> kShape = {kChannels, kHeight, kWidth};

/// Every pixel of every image has a value of its own, from 1 on.
std::shared_ptr<const Dataset> images() {
  const torch::Tensor values =
      torch::arange(1, kImages * kChannels * kHeight * kWidth + 1, torch::kFloat32)
          .view({kImages, kChannels, kHeight, kWidth});
  return TensorDataset::create(values, torch::arange(kImages), torch::kFloat32).take_or_throw();
}

std::vector<std::int64_t> all() {
  std::vector<std::int64_t> indices(kImages);
  for (std::int64_t i = 0; i < kImages; ++i) indices[static_cast<std::size_t>(i)] = i;
  return indices;
}

std::shared_ptr<const TransformedImages> transformed(ImageTransformOptions options) {
  return TransformedImages::create(images(), kShape, std::move(options)).take_or_throw();
}

TEST(TransformedImages, NormalisesEachChannelByItsOwnNumbers) {
  const auto dataset = transformed({.mean = {10, 20}, .stddev = {2, 4}});
  const Batch before = images()->get(all(), 0), after = dataset->get(all(), 3);
  EXPECT_TRUE(after.target.equal(before.target));
  const torch::Tensor mean = torch::tensor({10.f, 20.f}).view({1, 2, 1, 1});
  const torch::Tensor stddev = torch::tensor({2.f, 4.f}).view({1, 2, 1, 1});
  EXPECT_TRUE(after.input.allclose((before.input - mean) / stddev, 1e-6, 1e-4));
  const auto one = transformed({.mean = {3}, .stddev = {5}});
  EXPECT_TRUE(one->get(all(), 0).input.allclose((before.input - 3) / 5, 1e-6, 1e-4));
}

/// The move that made `after` of `before`, [channels, height, width]: {flipped, down, right}.
std::set<std::tuple<bool, int, int>> moves_of(const torch::Tensor& before,
                                              const torch::Tensor& after, int crop, float border) {
  std::set<std::tuple<bool, int, int>> found;
  const torch::Tensor padded = at::constant_pad_nd(before, {crop, crop, crop, crop}, border);
  for (const bool flip : {false, true}) {
    const torch::Tensor from = flip ? padded.flip({2}) : padded;
    for (int down = -crop; down <= crop; ++down) {
      for (int right = -crop; right <= crop; ++right) {
        const torch::Tensor part =
            from.narrow(1, crop + down, kHeight).narrow(2, crop + right, kWidth);
        if (part.equal(after)) found.emplace(flip, down, right);
      }
    }
  }
  return found;
}

// libtorch's own padding, mirroring and narrowing are the oracle.
TEST(TransformedImages, FlipsAndCropsWithPaddingInEveryWay) {
  const auto dataset = transformed({.flip = true, .crop = 2, .border = -7, .seed = 5});
  const Batch before = images()->get(all(), 0);
  std::map<std::tuple<bool, int, int>, int> drawn;
  for (std::int64_t epoch = 0; epoch < 60; ++epoch) {
    const Batch after = dataset->get(all(), epoch);
    for (std::int64_t i = 0; i < kImages; ++i) {
      const auto moves = moves_of(before.input[i], after.input[i], 2, -7);
      ASSERT_EQ(moves.size(), 1u) << "epoch " << epoch << ", sample " << i;
      ++drawn[*moves.begin()];
    }
  }
  // 1440 draws among 50 moves: each is expected 28.8 times, 0 times with probability e^-28
  EXPECT_EQ(drawn.size(), 50u);
  int flipped = 0;
  for (const auto& [move, count] : drawn) flipped += std::get<0>(move) ? count : 0;
  EXPECT_NEAR(flipped, 720, 6 * 19);  // six standard deviations of a fair coin
}

TEST(TransformedImages, AreAFunctionOfSeedEpochAndSampleAlone) {
  const ImageTransformOptions options{.flip = true, .crop = 1, .seed = 9};
  const auto dataset = transformed(options);
  const torch::Tensor whole = dataset->get(all(), 4).input;
  // any division among ranks, in any order, sees the same images
  for (const int ranks : {1, 2, 3, 5}) {
    for (int rank = 0; rank < ranks; ++rank) {
      Sampler sampler(kImages, 7, 3, /*shuffle=*/true, rank, ranks);
      for (std::int64_t cursor = 0; cursor < kImages;) {
        const Sampler::Slice slice = sampler.slice(cursor);
        const Batch part = transformed(options)->get(slice.indices, 4);
        for (std::size_t i = 0; i < slice.indices.size(); ++i) {
          EXPECT_TRUE(part.input[static_cast<std::int64_t>(i)].equal(whole[slice.indices[i]]));
        }
        cursor = slice.next;
      }
    }
  }
  EXPECT_FALSE(dataset->get(all(), 5).input.equal(whole));
  EXPECT_FALSE(transformed({.flip = true, .crop = 1, .seed = 8})->get(all(), 4).input.equal(whole));
}

TEST(TransformedImages, SayWhatDoesNotFit) {
  const auto message = [](ImageTransformOptions options, const std::vector<std::int64_t>& shape) {
    const Status status = TransformedImages::create(images(), shape, std::move(options)).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(message({.mean = {1, 2, 3}}, kShape), HasSubstr("2 channels"));
  EXPECT_THAT(message({.stddev = {0}}, kShape), HasSubstr("greater than 0"));
  EXPECT_THAT(message({.crop = 4}, kShape), HasSubstr("5 x 4"));
  EXPECT_THAT(message({.flip = true}, {40}), HasSubstr("[40]"));
}

}  // namespace
}  // namespace stormo::data
