// What GradientReducer sends, and how exact its averages are.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/base/event.h>
#include <stormo/train/reduction/gradient_reducer.h>
#include <stormo/train/wrap/distributed_data_parallel.h>

#include "tests/unit/train/sharded_problem.h"

namespace stormo {
namespace {

using train::GradientReducer;
using train::NamedParameter;
using train::ReductionOptions;

constexpr std::int64_t kElements = 1 << 16;
constexpr std::uint64_t kBytes = kElements * sizeof(float);
constexpr std::uint64_t kSmall = 200;  // flags, weights

struct Average {
  std::vector<std::uint64_t> sent;  ///< by rank
  double worst = 0;                 ///< difference from the true average, relative to the largest
};

// Rank r contributes (r + 1) x with weight r + 1, so many times. The mean of what comes.
Average average(const std::vector<int>& hosts, const ReductionOptions& how, int times = 1) {
  test::Group group = comm::make_hosts(hosts);
  Average out{.sent = std::vector<std::uint64_t>(group.size())};
  torch::manual_seed(5);
  const torch::Tensor x = torch::randn({kElements});
  double squares = 0, weights = 0;
  for (std::size_t r = 1; r <= group.size(); ++r) {
    squares += static_cast<double>(r * r);
    weights += static_cast<double>(r);
  }
  const torch::Tensor wanted = x.to(torch::kFloat64) * (squares / weights);
  std::mutex mutex;
  test::on_ranks(group, [&](comm::Communicator& world) {
    const torch::Tensor p = torch::zeros({kElements}).requires_grad_();
    const std::vector<NamedParameter> parameters = {{"p", p}};
    GradientReducer reducer(world, parameters);
    reducer.set_plan(train::plan_of_replicas(parameters, world.size(), how));
    reducer.set_weight(world.rank() + 1.0);
    torch::Tensor mean = torch::zeros({kElements}, torch::kFloat64);
    std::uint64_t sent = 0;
    for (int i = 0; i < times; ++i) {
      p.mutable_grad() = x * (world.rank() + 1.0);
      const std::uint64_t before = world.bytes_sent();
      throw_if_error(reducer.reduce());
      sent = world.bytes_sent() - before;
      EXPECT_EQ(p.grad().scalar_type(), torch::kFloat32);
      mean += p.grad() / times;
    }
    const std::lock_guard lock(mutex);
    out.sent[static_cast<std::size_t>(world.rank())] = sent;
    const torch::Tensor error = (mean - wanted).abs().max();
    out.worst = std::max(out.worst, (error / wanted.abs().max()).item<double>());
  });
  return out;
}

std::uint64_t total(const Average& a) {
  return std::accumulate(a.sent.begin(), a.sent.end(), std::uint64_t{0});
}

TEST(GradientReducer, SixteenBitsAreHalfTheBytes) {
  const std::vector<int> hosts = {1, 1, 1};
  const train::Overlap overlap = train::Overlap::at_the_end();
  const Average own = average(hosts, {.overlap = overlap});
  EXPECT_LT(own.worst, 1e-6);
  struct Row {
    Codec codec;
    double rounding;
  };
  for (const Row& row : {Row{Codec::kBFloat16, 1.0 / 256}, Row{Codec::kFloat16, 1.0 / 2048}}) {
    const Average half = average(hosts, {.overlap = overlap, .codec = row.codec});
    EXPECT_LE(2 * total(half), total(own) + 2 * kSmall * hosts.size());
    EXPECT_LT(half.worst, 3 * row.rounding) << to_string(row.codec);
    EXPECT_GT(half.worst, row.rounding / 100) << to_string(row.codec);
  }
}

// What 8 bits lose comes with the next gradients: the mean of many is exact.
TEST(GradientReducer, EightBitsAreAQuarterOfTheBytes) {
  const std::vector<int> hosts = {1, 1, 1};
  const train::Overlap overlap = train::Overlap::at_the_end();
  const Average own = average(hosts, {.overlap = overlap});
  const Average eighth = average(hosts, {.overlap = overlap, .codec = Codec::kInt8});
  EXPECT_LE(total(eighth), 0.26 * static_cast<double>(total(own)) + kSmall * 3);
  EXPECT_LT(eighth.worst, 0.02);
  EXPECT_GT(eighth.worst, 1e-4);
  const Average later = average(hosts, {.overlap = overlap, .codec = Codec::kInt8}, /*times=*/50);
  EXPECT_LT(later.worst, eighth.worst / 10);
}

// Without weights: only whether a rank has samples counts, and what it has no gradient of changes
// nothing.
TEST(GradientReducer, AdasumCombinesGradientsOfRanksWithSamples) {
  test::Group group = comm::make_hosts({2, 1});
  test::on_ranks(group, [](comm::Communicator& world) {
    std::vector<NamedParameter> parameters;
    for (const auto& [name, elements] : {std::pair{"of all", 2}, {"of one", 3}, {"of none", 1}}) {
      parameters.push_back({name, torch::zeros({elements}).requires_grad_()});
    }
    torch::Tensor &all = parameters[0].tensor, &one = parameters[1].tensor;
    GradientReducer reducer(world, parameters);
    reducer.set_plan(
        train::plan_of_replicas(parameters, world.size(),
                                {.overlap = train::Overlap::at_the_end(), .algorithm = "adasum"}));
    const std::vector<std::vector<float>> own = {{1, 0}, {0, 3}, {9, 9}};
    all.mutable_grad() = torch::tensor(own[static_cast<std::size_t>(world.rank())]);
    if (world.rank() == 0) one.mutable_grad() = torch::tensor({1.f, 2.f, 3.f});
    const std::vector<double> weights = {1, 5, 0};
    reducer.set_weight(weights[static_cast<std::size_t>(world.rank())]);
    throw_if_error(reducer.reduce());
    EXPECT_TRUE(torch::equal(all.grad(), torch::tensor({1.f, 3.f})));
    EXPECT_TRUE(torch::equal(one.grad(), torch::tensor({1.f, 2.f, 3.f})));
    EXPECT_FALSE(parameters[2].tensor.grad().defined());
    EXPECT_TRUE(reducer.residuals().empty());
  });
}

// A request has what the plan says, so gradients must be of that.
TEST(GradientReducer, RefusesAPlanOfOtherElementsOrTypes) {
  test::Group group = comm::make_hosts({2});
  const auto refused = [&](const torch::Tensor& planned) {
    const std::vector<NamedParameter> own = {{"p", torch::zeros({4}).requires_grad_()}};
    GradientReducer reducer(*group[0], own);
    const plan::StepPlan plan =
        train::plan_of_replicas({{"p", planned}}, 2, {.overlap = train::Overlap::at_the_end()});
    try {
      reducer.set_plan(plan);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused(torch::zeros({4}).requires_grad_()), "");
  EXPECT_THAT(refused(torch::zeros({5}).requires_grad_()),
              testing::HasSubstr("the plan sends 6 elements of float32, but there are 5"));
  EXPECT_THAT(refused(torch::zeros({4}, torch::kFloat64).requires_grad_()),
              testing::HasSubstr("'p' is of float64, the module's of float32"));
}

// A2: which algorithm reduces changes who sends how much, and nothing else.
TEST(GradientReducer, ReducersDifferInWhatTheySend) {
  const train::Overlap overlap = train::Overlap::at_the_end();
  const Average ring = average({1, 1, 1}, {.overlap = overlap, .algorithm = "ring_all_reduce"});
  for (const std::uint64_t sent : ring.sent) {
    EXPECT_GE(sent, 2 * kBytes * 2 / 3);
    EXPECT_LE(sent, 2 * kBytes * 2 / 3 + kSmall);
  }
  const Average one = average({1, 1, 1}, {.overlap = overlap, .algorithm = "star_all_reduce"});
  EXPECT_GE(one.sent[0], 2 * kBytes);
  EXPECT_LE(one.sent[0], 2 * kBytes + kSmall);
  EXPECT_LE(one.sent[1], kBytes + kSmall);
  EXPECT_LE(one.sent[2], kBytes + kSmall);
  const Average hierarchical =
      average({2, 2}, {.overlap = overlap, .algorithm = "hierarchical_all_reduce"});
  EXPECT_GE(total(hierarchical), 2 * kBytes);
  EXPECT_LE(total(hierarchical), 2 * kBytes + 4 * kSmall);
  for (const Average& a : {ring, one, hierarchical}) EXPECT_LT(a.worst, 1e-6);
}

class Reductions final : public Sink {
 public:
  void record(const Event& event) override {
    if (event.name != "all_reduce" || event.bytes <= kSmall) return;
    {
      const std::lock_guard lock(mutex_);
      seen_ = true;
    }
    changed_.notify_all();
  }
  /// Waits for the first one to end; false when it does not.
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [this] { return seen_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool seen_ = false;
};

// A8: the last layer's gradients are on their way while backward computes the first layer's.
TEST(DistributedDataParallel, TheFirstBucketIsSentBeforeBackwardEnds) {
  test::Group group = comm::make_hosts({1, 1});
  std::vector<torch::nn::Sequential> nets;
  for (std::size_t r = 0; r < group.size(); ++r) {
    nets.emplace_back(torch::nn::Linear(64, 64), torch::nn::Linear(64, 64),
                      torch::nn::Linear(64, 64));
  }
  const torch::Tensor x = torch::ones({2, 64});
  test::on_ranks(group, [&](comm::Communicator& world) {
    torch::nn::Sequential& net = nets[static_cast<std::size_t>(world.rank())];
    train::DistributedDataParallel ddp(world, net, {.overlap = train::Overlap::buckets(1)});
    for (int pass = 0; pass < 3; ++pass) {  // the order of arrival is followed after the first
      Reductions reductions;
      world.set_sink(&reductions);
      torch::Tensor hidden = net[0]->as<torch::nn::Linear>()->forward(x);
      // in the middle of backward: the last layer's gradients are there, the first one's are not
      hidden.register_hook([&](const torch::Tensor&) { EXPECT_TRUE(reductions.wait()) << pass; });
      const torch::Tensor rest = net[1]->as<torch::nn::Linear>()->forward(hidden);
      net[2]->as<torch::nn::Linear>()->forward(rest).sum().backward();
      world.set_sink(nullptr);
    }
  });
}

// In a loop of one's own too: backward, what it counts and what it reduces.
TEST(DistributedDataParallel, DoesWhatItsPlanSays) {
  for (const std::vector<int>& hosts : {std::vector<int>{2}, {1, 1}}) {
    for (const train::Overlap overlap : {train::Overlap::at_the_end(), train::Overlap::buckets(1),
                                         train::Overlap::buckets(9000)}) {
      test::Group group = comm::make_hosts(hosts);
      std::vector<torch::nn::Sequential> nets;
      for (std::size_t r = 0; r < group.size(); ++r) {
        nets.emplace_back(torch::nn::Linear(8, 64), torch::nn::Linear(64, 3));
      }
      test::on_ranks(group, [&](comm::Communicator& world) {
        torch::nn::Sequential& net = nets[static_cast<std::size_t>(world.rank())];
        train::DistributedDataParallel ddp(world, net, {.overlap = overlap});
        for (int pass = 0; pass < 3; ++pass) {
          const plan::StepPlan plan = ddp.plan();
          std::vector<plan::Action> done;
          ddp.on_action([&done](const plan::Action& a) { done.push_back(a); });
          net->forward(torch::ones({2, 8})).sum().backward();
          for (const bool asynchronous : {false, true}) {
            std::vector<plan::Action> planned, mine;
            for (const plan::Action& a : plan.actions) {
              const bool in_backward = a.kind == plan::ActionKind::kBackward ||
                                       a.kind == plan::ActionKind::kSumWeights ||
                                       a.kind == plan::ActionKind::kAllReduce;
              if (in_backward && a.asynchronous == asynchronous) planned.push_back(a);
            }
            std::ranges::copy_if(done, std::back_inserter(mine), [=](const plan::Action& a) {
              return a.asynchronous == asynchronous;
            });
            EXPECT_EQ(mine, planned) << to_text(plan);
          }
          EXPECT_EQ(done.size() > 2, overlap != train::Overlap::at_the_end());
        }
      });
    }
  }
}

}  // namespace
}  // namespace stormo
