#include <stormo/train/state/state_blocks.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/state/checkpoint.h>

#include "tests/unit/train/flip.h"

namespace stormo::train {
namespace {

using test::flip;

TensorPiece whole(const std::string& name, const torch::Tensor& values) {
  return {.name = name, .shape = values.sizes().vec(), .end = values.numel(), .values = values};
}

constexpr std::int64_t kFloats = StateBlocks::kBytes / 4;

TEST(StateBlocks, EveryElementIsInOneBlock) {
  for (const std::int64_t n :
       {std::int64_t{0}, std::int64_t{1}, kFloats - 1, kFloats, kFloats + 1, 3 * kFloats + 7}) {
    const StateBlocks blocks({whole("a", torch::zeros({n})), whole("b", torch::zeros({5}))});
    EXPECT_EQ(blocks.size(), static_cast<std::size_t>((n + kFloats - 1) / kFloats) + 1) << n;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) bytes += blocks.bytes(i);
    EXPECT_EQ(bytes, static_cast<std::size_t>(n + 5) * 4);
  }
}

TEST(StateBlocks, ABlockSaysWhereItIsInTheWholeTensor) {
  TensorPiece part = whole("fc.weight", torch::zeros({kFloats + 3}));
  part.begin = 100;
  part.end = part.begin + kFloats + 3;
  const StateBlocks blocks({part});
  EXPECT_EQ(blocks.place(0).text(), "'fc.weight', elements 100 to " + std::to_string(99 + kFloats));
  EXPECT_EQ(blocks.place(1).text(), "'fc.weight', elements " + std::to_string(100 + kFloats) +
                                        " to " + std::to_string(102 + kFloats));
}

/// Every kind of memory that a state has.
std::vector<torch::Tensor> kinds() {
  return {torch::randn({kFloats + 100}),
          torch::randn({7, 3}, torch::kFloat64),
          torch::randn({9}).to(torch::kBFloat16),
          torch::arange(4),
          torch::randn({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast),
          torch::randn({6, 5}).t(),
          torch::randn({8, 8}).slice(1, 2, 5)};
}

TEST(StateBlocks, OneBitChangesOneHashAndIsPutRight) {
  for (const torch::Tensor& t : kinds()) {
    StateBlocks blocks({whole("before", torch::ones({3})), whole("t", t)});
    const std::vector<std::uint64_t> right = blocks.hashes();
    const std::uint64_t all = blocks.hash(0, blocks.size());
    std::vector<std::vector<char>> kept;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      kept.emplace_back(blocks.bytes(i));
      blocks.read(i, kept.back().data());
    }
    const torch::Tensor before = t.clone();
    flip(t, 1);
    const std::vector<std::uint64_t> wrong = blocks.hashes();
    EXPECT_EQ(wrong[0], right[0]);
    EXPECT_NE(wrong[1], right[1]) << t.sizes();
    EXPECT_NE(blocks.hash(0, blocks.size()), all);
    blocks.write(1, kept[1].data());
    EXPECT_EQ(blocks.hashes(), right) << t.sizes();
    EXPECT_TRUE(t.equal(before)) << t.sizes();
  }
}

TEST(StateBlocks, ComparesBitsAndNotNumbers) {
  const auto hash = [](float value) {
    return StateBlocks({whole("t", torch::full({2}, value))}).hash(0, 1);
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(hash(nan), hash(nan));
  EXPECT_NE(hash(nan), hash(-nan));
  EXPECT_NE(hash(0.0F), hash(-0.0F));
}

TEST(StateBlocks, AWrittenBlockKeepsThePayloadOfANan) {
  torch::Tensor t = torch::zeros({3});
  const std::uint32_t payload = 0xffc12345;
  std::memcpy(static_cast<char*>(t.mutable_data_ptr()) + 4, &payload, 4);
  std::vector<char> bytes(12);
  StateBlocks blocks({whole("t", t)});
  blocks.read(0, bytes.data());
  t.zero_();
  blocks.write(0, bytes.data());
  EXPECT_EQ(std::memcmp(t.const_data_ptr(), bytes.data(), 12), 0);
}

TEST(StateBlocks, AutogradSeesThatAParameterWasWritten) {
  torch::Tensor t = torch::ones({3}).requires_grad_();
  StateBlocks blocks({whole("t", t)});
  const auto version = t._version();
  const std::vector<char> bytes(12);
  blocks.write(0, bytes.data());
  EXPECT_GT(t._version(), version);
  EXPECT_TRUE(t.detach().equal(torch::zeros({3})));
}

TEST(StateHash, CoversParametersBuffersAndOptimizerState) {
  const auto hash_after = [](const std::string& change) {
    const auto owner = std::make_shared<torch::nn::Module>();
    torch::nn::Module& module = *owner;
    module.register_parameter("weight", torch::ones({5}));
    module.register_buffer("running", torch::ones({3}));
    FusedOptimizer optimizer({.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.1},
                             trainable_parameters(module));
    module.named_parameters()["weight"].mutable_grad() = torch::ones({5});
    EXPECT_TRUE(optimizer.step(0.1).ok());
    if (change == "weight") flip(module.named_parameters()["weight"], 3);
    if (change == "running") flip(module.named_buffers()["running"], 3);
    if (change == "moment") flip(optimizer.values().slots[1][0], 3);
    if (change == "steps") optimizer.set_steps(std::vector<std::int64_t>{2});
    return state_hash(named_state(module), optimizer.state());
  };
  EXPECT_EQ(hash_after(""), hash_after(""));
  for (const char* change : {"weight", "running", "moment", "steps"}) {
    EXPECT_NE(hash_after(change), hash_after("")) << change;
  }
}

}  // namespace
}  // namespace stormo::train
