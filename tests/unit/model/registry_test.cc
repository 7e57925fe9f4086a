#include <gmock/gmock.h>
#include <torch/types.h>

#include <stormo/model/registry.h>

namespace stormo::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(MakeModel, BuildsEveryKind) {
  for (const auto& kind : model_kinds()) {
    EXPECT_THAT(validate({.kind = kind}), IsEmpty());
    const auto model = make_model({.kind = kind});
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    EXPECT_FALSE((*model)->parameters().empty());
  }
}

TEST(MakeModel, PassesTheSizesOn) {
  const auto mlp = make_model({.kind = "mlp", .sizes = {6, 4, 3}});
  EXPECT_EQ((*mlp)->forward(torch::zeros({2, 6})).sizes(), at::IntArrayRef({2, 3}));
  const auto cnn = make_model({.kind = "cnn", .classes = 7});
  EXPECT_EQ((*cnn)->forward(torch::zeros({2, 1, 28, 28})).sizes(), at::IntArrayRef({2, 7}));
  const auto wide = make_model({.kind = "cnn", .classes = 7, .image = {3, 16, 40}});
  EXPECT_EQ((*wide)->forward(torch::zeros({2, 3, 16, 40})).sizes(), at::IntArrayRef({2, 7}));
  const auto resnet = make_model({.kind = "resnet20", .classes = 5, .image = {1, 9, 8}});
  EXPECT_EQ((*resnet)->forward(torch::zeros({2, 1, 9, 8})).sizes(), at::IntArrayRef({2, 5}));
  const auto texts = make_model({.kind = "text_classifier",
                                 .classes = 3,
                                 .layers = 1,
                                 .heads = 2,
                                 .width = 8,
                                 .context = 5,
                                 .vocabulary = 9});
  EXPECT_EQ((*texts)->segments().size(), 3u);
  EXPECT_EQ((*texts)->forward(torch::ones({2, 5}, torch::kInt64)).sizes(), at::IntArrayRef({2, 3}));
  const auto gpt = make_model({.kind = "gpt",
                               .layers = 3,
                               .heads = 2,
                               .width = 8,
                               .context = 5,
                               .vocabulary = 9,
                               .tied = false});
  EXPECT_EQ((*gpt)->segments().size(), 5u);
  EXPECT_EQ((*gpt)->forward(torch::zeros({2, 5}, torch::kInt64)).sizes(),
            at::IntArrayRef({2, 5, 9}));
}

TEST(MakeModel, StartsEqualFromEqualSeeds) {
  torch::manual_seed(5);
  const auto a = make_model({.kind = "cnn"});
  torch::manual_seed(5);
  const auto b = make_model({.kind = "cnn"});
  const auto pa = (*a)->parameters(), pb = (*b)->parameters();
  for (std::size_t i = 0; i < pa.size(); ++i) EXPECT_TRUE(pa[i].equal(pb[i]));
}

TEST(MakeModel, ListsAllProblemsAtOnce) {
  const auto refused =
      make_model({.kind = "gpt", .layers = 0, .heads = 3, .width = 128, .context = -1});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(
      refused.status().message(),
      AllOf(HasSubstr("model.layers is 0; it must be at least 1"), HasSubstr("model.context is -1"),
            HasSubstr("model.width 128 is not divisible by model.heads 3; use e.g. 129")));
  EXPECT_THAT(validate({.kind = "mlp", .sizes = {784, 0, -3}}), SizeIs(2));
  EXPECT_THAT(validate({.kind = "mlp", .sizes = {784}}), SizeIs(1));
  EXPECT_THAT(validate({.kind = "cnn", .classes = 0}), SizeIs(1));
  EXPECT_THAT(validate({.kind = "resnet20", .classes = 0, .image = {3, 0, 8}}), SizeIs(2));
  EXPECT_THAT(validate({.kind = "resnet20", .image = {3, 8}}), SizeIs(1));
  EXPECT_THAT(validate({.kind = "cnn", .image = {3, 15, 32}}).front(), HasSubstr("16 x 16"));
  EXPECT_THAT(validate({.kind = "text_classifier", .layers = -1, .heads = 3}), SizeIs(1));
  EXPECT_THAT(validate({.kind = "text_classifier", .layers = 1, .heads = 3}), SizeIs(1));
  EXPECT_THAT(validate({.kind = "text_classifier", .layers = 0, .heads = 3}), SizeIs(0));
  EXPECT_THAT(validate({.kind = "text_classifier", .layers = 0, .sparse = true}), SizeIs(0));
  EXPECT_THAT(validate({.kind = "text_classifier", .layers = 1, .sparse = true}), SizeIs(1));
}

TEST(MakeModel, SuggestsTheNearestKind) {
  const auto problems = validate({.kind = "gpt2"});
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_THAT(problems[0], AllOf(HasSubstr("mlp, cnn, gpt"), HasSubstr("did you mean gpt?")));
}

}  // namespace
}  // namespace stormo::model
