#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include <stormo/base/temporary_folder.h>
#include <stormo/checkpoint/writer.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class TensorCheckpoint : public testing::Test {
 protected:
  checkpoint::CheckpointReader saved(const TensorMap& tensors) {
    checkpoint::Snapshot snapshot;
    throw_if_error(add_pieces(tensors, snapshot.pieces));
    const auto group = comm::make_inproc_group(1).take_or_throw();
    const std::string path =
        checkpoint::save_checkpoint(*group[0], folder_, snapshot, 1).take_or_throw();
    return checkpoint::CheckpointReader::open(path).take_or_throw();
  }

  const TemporaryFolder own_ = TemporaryFolder::create("checkpoint").take_or_throw();
  const fs::path& folder_ = own_.path();
};

TEST_F(TensorCheckpoint, ValuesComeBackInWhateverLayout) {
  const TensorMap tensors = {{"plain", torch::randn({3, 4})},
                             {"transposed", torch::randn({3, 4}).t()},
                             {"half", torch::randn({5}).to(torch::kBFloat16)},
                             {"scalar", torch::tensor(2.5)},
                             {"flags", torch::tensor({true, false})},
                             {"empty", torch::empty({0, 2})}};
  auto reader = saved(tensors);
  TensorMap read;
  for (const auto& [name, t] : tensors) read[name] = torch::zeros_like(t);
  read["plain"] = torch::zeros({4, 3}).t();
  ASSERT_TRUE(read_into(reader, read).ok());
  for (const auto& [name, t] : tensors) EXPECT_TRUE(torch::equal(read[name], t)) << name;
}

TEST_F(TensorCheckpoint, WhatDoesNotFitIsNamedAndNothingIsChanged) {
  auto reader = saved({{"a", torch::ones({2})}, {"b", torch::ones({2})}});
  const torch::Tensor a = torch::zeros({2});
  const auto refused = [&](const std::string& name, const torch::Tensor& t, const char* why) {
    const Status status = read_into(reader, {{"a", a}, {name, t}});
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(why));
    EXPECT_TRUE(torch::equal(a, torch::zeros({2})));
  };
  refused("c", torch::zeros({2}), "it has no 'c'");
  refused("b", torch::zeros({3}), "'b' is F32 [2], the model's is F32 [3]");
  refused("b", torch::zeros({2}, torch::kFloat64), "'b' is F32 [2], the model's is F64 [2]");
}

TEST_F(TensorCheckpoint, OptimizerStateIsWhatIsNamedSo) {
  auto reader = saved({{"a", torch::ones({2})}, {"optimizer.momentum.a", torch::full({2}, 3.0)}});
  const TensorMap state = read_optimizer_state(reader).take_or_throw();
  ASSERT_EQ(state.size(), 1u);
  EXPECT_TRUE(torch::equal(state.at("optimizer.momentum.a"), torch::full({2}, 3.0)));
}

TEST_F(TensorCheckpoint, WhatCannotBeStoredIsRefused) {
  std::vector<checkpoint::Piece> pieces;
  const Status status = add_pieces({{"s", torch::ones({2, 2}).to_sparse()}}, pieces);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("'s'"));
}

TEST_F(TensorCheckpoint, AStepOfAutogradSeesThatValuesWereRead) {
  auto reader = saved({{"w", torch::ones({2})}});
  const torch::Tensor w = torch::zeros({2}, torch::requires_grad());
  const torch::Tensor loss = (w * w).sum();
  ASSERT_TRUE(read_into(reader, {{"w", w}}).ok());
  EXPECT_THROW(loss.backward(), std::exception);  // its saved w is gone
}

TEST(WeightsHash, SeesNamesShapesDTypesAndBytes) {
  const torch::Tensor t = torch::arange(6, torch::kFloat32);
  const std::string base = weights_hash({{"a", t}});
  EXPECT_EQ(base.size(), 16u);
  EXPECT_EQ(base, weights_hash({{"a", t.clone()}}));
  EXPECT_NE(base, weights_hash({{"b", t}}));
  EXPECT_NE(base, weights_hash({{"a", t.reshape({2, 3})}}));
  EXPECT_NE(base, weights_hash({{"a", t.view(torch::kInt32)}}));
  EXPECT_NE(base, weights_hash({{"a", t + 1}}));
  EXPECT_NE(weights_hash({}), base);
  EXPECT_EQ(weights_hash({{"a", torch::arange(6).reshape({2, 3}).t()}}),
            weights_hash({{"a", torch::arange(6).reshape({2, 3}).t().contiguous()}}));
}

TEST(NamedState, HoldsParametersAndBuffers) {
  torch::nn::BatchNorm1d norm(3);
  std::vector<std::string> found;
  for (const auto& [name, tensor] : named_state(*norm)) found.push_back(name);
  EXPECT_THAT(found, UnorderedElementsAre("weight", "bias", "running_mean", "running_var",
                                          "num_batches_tracked"));
}

}  // namespace
}  // namespace stormo::train
