#include <stormo/data/image/image_dataset.h>

#include <gmock/gmock.h>
#include <torch/types.h>

#include <cstdlib>
#include <filesystem>

#include "idx_bytes.h"
#include "scratch.h"
#include "tests/built.h"

namespace stormo::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A split of `images` images of one grey each, in the form of MNIST.
void write_mnist(const Scratch& scratch, const std::string& prefix, std::uint32_t images,
                 const std::string& labels) {
  std::string pixels;
  for (std::uint32_t i = 0; i < images; ++i) pixels.append(28 * 28, static_cast<char>(i));
  scratch.write(prefix + "-images-idx3-ubyte", idx_bytes({images, 28, 28}, pixels));
  scratch.write(prefix + "-labels-idx1-ubyte.gz",
                gzip(idx_bytes({static_cast<std::uint32_t>(labels.size())}, labels)));
}

class Mnist : public ::testing::Test {
 protected:
  Status status() const { return load_mnist(scratch_.path(), MnistSplit::kTrain).status(); }
  Scratch scratch_;
};

TEST_F(Mnist, GivesNormalisedImagesInTheOrderAsked) {
  write_mnist(scratch_, "train", 5, std::string("\x05\x00\x09\x01\x02", 5));
  for (const auto dtype : {torch::kFloat32, torch::kFloat64}) {
    const auto loaded = load_mnist(scratch_.path(), MnistSplit::kTrain, {.dtype = dtype});
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    const Dataset& dataset = **loaded;
    EXPECT_EQ(dataset.size(), 5);
    const std::vector<std::int64_t> indices = {4, 0, 2, 2};
    const Batch batch = dataset.get(indices, 0);
    EXPECT_EQ(batch.size(), 4);
    EXPECT_EQ(batch.input.sizes(), at::IntArrayRef({4, 1, 28, 28}));
    EXPECT_EQ(batch.input.scalar_type(), dtype);
    EXPECT_TRUE(batch.target.equal(torch::tensor({2, 5, 9, 9}, torch::kInt64)));
    for (int row = 0; row < 4; ++row) {
      const double grey = static_cast<double>(indices[static_cast<std::size_t>(row)]);
      EXPECT_NEAR(batch.input[row].min().item<double>(), (grey / 255 - 0.1307) / 0.3081, 1e-6);
      EXPECT_NEAR(batch.input[row].max().item<double>(), (grey / 255 - 0.1307) / 0.3081, 1e-6);
    }
    const Batch nothing = dataset.get({}, 0);
    EXPECT_EQ(nothing.input.sizes(), at::IntArrayRef({0, 1, 28, 28}));
    EXPECT_EQ(nothing.target.sizes(), at::IntArrayRef({0}));
  }
}

TEST_F(Mnist, FindsTheTestSplitAndTheOtherSpelling) {
  write_mnist(scratch_, "t10k", 2, std::string(2, '\3'));
  std::filesystem::rename(scratch_.path("t10k-images-idx3-ubyte"),
                          scratch_.path("t10k-images.idx3-ubyte"));
  const auto loaded = load_mnist(scratch_.path(), MnistSplit::kTest);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ((*loaded)->size(), 2);
}

TEST_F(Mnist, ListsWhatItLookedFor) {
  EXPECT_EQ(status().code(), Code::kNotFound);
  EXPECT_THAT(status().message(),
              AllOf(HasSubstr(scratch_.path()), HasSubstr("train-images-idx3-ubyte,"),
                    HasSubstr("train-images-idx3-ubyte.gz"), HasSubstr("set data.path")));
  EXPECT_EQ(load_mnist(scratch_.path("nowhere"), MnistSplit::kTest).status().code(),
            Code::kNotFound);
}

TEST_F(Mnist, RefusesUnequalCounts) {
  write_mnist(scratch_, "train", 3, std::string(4, '\1'));
  EXPECT_EQ(status().code(), Code::kCorrupt);
  EXPECT_THAT(status().message(), AllOf(HasSubstr("3 images"), HasSubstr("4 labels"),
                                        HasSubstr("train-images"), HasSubstr("train-labels")));
}

TEST_F(Mnist, RefusesALabelOutOfRangeAndNoSamples) {
  write_mnist(scratch_, "train", 3, std::string("\1\x0a\2", 3));
  EXPECT_THAT(status().message(), HasSubstr("label 10 of sample 1 is not in 0..9"));
  write_mnist(scratch_, "train", 0, "");
  EXPECT_THAT(status().message(), HasSubstr("holds no images"));
}

TEST_F(Mnist, RefusesImagesOfAnotherSize) {
  write_mnist(scratch_, "train", 1, std::string(1, '\1'));
  scratch_.write("train-images-idx3-ubyte", idx_bytes({1, 32, 32}, std::string(1024, 'x')));
  EXPECT_THAT(status().message(), HasSubstr("32 x 32, expected 28 x 28"));
}

TEST(MnistFiles, LoadAsPublished) {
  const char* const chosen = std::getenv("STORMO_TEST_DATA");
  const std::filesystem::path data =
      chosen != nullptr ? chosen : testing::repository() / "../shared/data";
  if (!std::filesystem::exists(data / "mnist")) {
    GTEST_SKIP() << "data: no mnist folder in " << data << "; set STORMO_TEST_DATA";
  }
  const auto train = load_mnist((data / "mnist").string(), MnistSplit::kTrain);
  const auto test = load_mnist((data / "mnist").string(), MnistSplit::kTest);
  ASSERT_TRUE(train.ok() && test.ok());
  EXPECT_EQ((*train)->size(), 60000);
  EXPECT_EQ((*test)->size(), 10000);
  std::vector<std::int64_t> all(60000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  const Batch batch = (*train)->get(all, 0);
  EXPECT_NEAR(batch.input.mean().item<double>(), 0, 1e-3);  // what the two constants are for
  EXPECT_NEAR(batch.input.std().item<double>(), 1, 1e-3);
}

}  // namespace
}  // namespace stormo::data
