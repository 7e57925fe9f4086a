// Attention over positions that ranks share: the same as attention of one rank, forward and
// backward.
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <stormo/tensor/context.h>

#include "tests/unit/train/plan_run.h"

namespace stormo::tensor {
namespace {

using plan::AttentionForm;

constexpr std::int64_t kBatch = 2, kHeads = 12, kWidth = 8;

struct Case {
  int ranks = 2;
  std::int64_t length = 8;
  bool causal = true;
  AttentionForm form = AttentionForm::kRing;
  torch::ScalarType type = torch::kFloat64;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.ranks << "_ranks_" << c.length << (c.causal ? "_causal_" : "_full_")
             << to_string(c.form) << '_' << torch::toString(c.type);
}

torch::Tensor random(std::int64_t length, int seed, torch::ScalarType type) {
  torch::manual_seed(seed);
  return torch::randn({kBatch, kHeads, length, kWidth}, torch::kFloat64).to(type);
}

class ContextAttention : public testing::TestWithParam<Case> {};

TEST_P(ContextAttention, IsThatOfOneRank) {
  const Case& c = GetParam();
  const double tolerance = c.type == torch::kFloat64   ? 1e-12
                           : c.type == torch::kFloat32 ? 1e-5
                                                       : 3e-2;
  std::vector<torch::Tensor> whole;
  for (int i = 0; i < 3; ++i) whole.push_back(random(c.length, i, c.type).requires_grad_());
  const torch::Tensor gradient = random(c.length, 3, c.type);
  const torch::Tensor expected = attention(whole[0], whole[1], whole[2], c.causal, nullptr);
  expected.backward(gradient);
  test::on_ranks(c.ranks, [&](comm::Communicator& world) {
    const ContextGroup ranks(world, c.form);
    std::vector<torch::Tensor> own;
    for (const torch::Tensor& x : whole) {
      own.push_back(ranks.take(x.detach(), 2).requires_grad_());
    }
    const torch::Tensor out = attention(own[0], own[1], own[2], c.causal, &ranks);
    EXPECT_EQ(out.scalar_type(), c.type);
    EXPECT_TRUE(out.allclose(ranks.take(expected.detach(), 2), tolerance, tolerance));
    out.backward(ranks.take(gradient, 2));
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(own[i].grad().allclose(ranks.take(whole[i].grad(), 2), tolerance, tolerance))
          << "gradient " << i << " differs by "
          << (own[i].grad() - ranks.take(whole[i].grad(), 2)).abs().max().item<double>();
    }
  });
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const AttentionForm form : {AttentionForm::kRing, AttentionForm::kHeads}) {
    for (const int ranks : {2, 3, 4, 6}) {
      for (const bool causal : {true, false}) {
        out.push_back({ranks, 2 * ranks, causal, form});  // chunks of one position
        out.push_back({ranks, 24 * ranks, causal, form});
      }
    }
    out.push_back({4, 1024, true, form, torch::kFloat32});
    out.push_back({4, 1024, false, form, torch::kFloat32});
    out.push_back({2, 128, true, form, torch::kBFloat16});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Cases, ContextAttention, testing::ValuesIn(cases()),
                         [](const auto& c) { return testing::PrintToString(c.param); });

TEST(Context, TheLastRankHasTheTwoChunksInTheMiddle) {
  for (const int parts : {2, 3, 5}) {
    const ContextGroup last = ContextGroup::alone(parts, AttentionForm::kRing);
    const torch::Tensor all = torch::arange(4 * parts, torch::kInt64);
    EXPECT_TRUE(last.take(all, 0).equal(last.positions(4)));
    EXPECT_TRUE(last.positions(4).equal(torch::arange(2 * parts - 2, 2 * parts + 2)));
  }
}

/// The pairs of a query and a key for which this thread computes scores while it lives, of each
/// sample and head: what the kernels of attention are called with.
class CountPairs {
 public:
  CountPairs() {
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& call)
                                       -> std::unique_ptr<at::ObserverContext> {
          const std::string_view name = call.name();
          if (name == kForward) add(forward, call.inputs(), 0, 4);
          if (name == kBackward) add(backward, call.inputs(), 1, 7);
          return nullptr;
        }).needsInputs(true));
    forward = backward = 0;
  }
  ~CountPairs() { at::removeCallback(handle_); }
  CountPairs(const CountPairs&) = delete;
  CountPairs& operator=(const CountPairs&) = delete;

  static inline thread_local std::int64_t forward = 0, backward = 0;

 private:
  static constexpr std::string_view kForward = "aten::_scaled_dot_product_flash_attention_for_cpu";
  static constexpr std::string_view kBackward =
      "aten::_scaled_dot_product_flash_attention_for_cpu_backward";

  static void add(std::int64_t& pairs, c10::ArrayRef<const c10::IValue> inputs, std::size_t query,
                  std::size_t causal) {
    const std::int64_t queries = inputs[query].toTensor().size(2);
    const std::int64_t keys = inputs[query + 1].toTensor().size(2);
    pairs += inputs[causal].toBool() ? queries * (queries + 1) / 2 : queries * keys;
  }

  at::CallbackHandle handle_{};
};

TEST(Context, RanksComputeEquallyManyCausalScoresAndNoneInVain) {
  for (const int parts : {2, 3, 4}) {
    const std::int64_t length = 12 * parts;
    const torch::Tensor x = random(length, 0, torch::kFloat32);
    test::on_ranks(parts, [&](comm::Communicator& world) {
      const ContextGroup ranks(world, AttentionForm::kRing);
      const torch::Tensor own = ranks.take(x, 2).requires_grad_();
      const CountPairs pairs;
      attention(own, own, own, /*causal=*/true, &ranks).sum().backward();
      const double mean = static_cast<double>(length * (length + 1) / 2) / parts;
      EXPECT_NEAR(static_cast<double>(CountPairs::forward), mean, 0.1 * mean);
      EXPECT_EQ(CountPairs::backward, CountPairs::forward);
      std::int64_t all = CountPairs::forward;
      throw_if_error(world.all_reduce(std::span(&all, 1), comm::ReduceOp::kSum));
      EXPECT_EQ(all, length * (length + 1) / 2);
    });
  }
}

TEST(Context, RanksHaveAllPositionsOnce) {
  test::on_ranks(3, [](comm::Communicator& world) {
    const ContextGroup ranks(world, AttentionForm::kRing);
    torch::Tensor seen = torch::zeros({12}, torch::kInt64);
    seen.index_fill_(0, ranks.positions(4), 1);
    throw_if_error(
        world.all_reduce(std::span(seen.data_ptr<std::int64_t>(), 12), comm::ReduceOp::kSum));
    EXPECT_TRUE(seen.equal(torch::ones({12}, torch::kInt64)));
  });
}

TEST(Context, RefusesWhatIsNoEqualChunks) {
  const ContextGroup ranks = ContextGroup::alone(3, AttentionForm::kRing);
  for (const torch::Tensor& x : {torch::zeros({2, 8}), torch::zeros({2})}) {
    try {
      ranks.take(x, 1);
      ADD_FAILURE() << x.sizes();
    } catch (const Error& e) {
      EXPECT_NE(e.status().message().find("6 equal chunks, two for each of 3 ranks"),
                std::string::npos);
    }
  }
}

}  // namespace
}  // namespace stormo::tensor
