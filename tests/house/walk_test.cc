// The values that docs/walk-all-reduce.md and docs/walk-step.md follow.
#include <stormo/comm/communicator.h>
#include <stormo/comm/program/program.h>
#include <stormo/optim/update.h>
#include <stormo/schedule/algorithms.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace stormo {
namespace {

// --- walk-all-reduce.md ----------------------------------------------------------------------
void add_up(comm::Communicator& world, std::span<float> values) {
  const comm::Buffer buffer = values;
  const comm::Request request{.kind = comm::OperationKind::kAllReduce,
                              .in = {&buffer, 1},
                              .out = {&buffer, 1},
                              .algorithm = "direct_all_reduce"};
  throw_if_error(world.run(request, Deadline::never()));
}

/// Calls `body` on both ranks, with four floats in the rank's arena.
void on_two_ranks(const std::function<void(comm::Communicator&, std::span<float>)>& body) {
  auto group = comm::make_inproc_group(2).take_or_throw();
  std::vector<std::thread> threads;
  for (auto& world : group) {
    threads.emplace_back([&body, c = world.get()] {
      auto* memory = static_cast<float*>(c->arena().allocate(4 * sizeof(float)));
      body(*c, std::span(memory, 4));
      c->arena().deallocate(memory);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(WalkAllReduce, EndsWithTheSumOnBothRanks) {
  for (const bool names_the_algorithm : {true, false}) {
    on_two_ranks([&](comm::Communicator& world, std::span<float> values) {
      constexpr std::array<float, 4> kTerms[] = {{1, 2, 3, 4}, {10, 20, 30, 40}};
      std::ranges::copy(kTerms[world.rank()], values.begin());
      if (names_the_algorithm) {
        add_up(world, values);
      } else {
        EXPECT_TRUE(world.all_reduce(values, comm::ReduceOp::kSum).ok());
      }
      EXPECT_TRUE(std::ranges::equal(values, std::array<float, 4>{11, 22, 33, 44}));
    });
  }
}

TEST(WalkAllReduce, HasOneReductionAndOneMeeting) {
  using comm::Area, comm::Instruction;
  for (const Rank rank : {0, 1}) {
    const comm::Program program =
        compile(schedule::direct_all_reduce(2), rank, comm::HostMap::of({2}));
    const comm::Program expected{.chunks = 2,
                                 .steps = {{.kind = Instruction::Kind::kReduce,
                                            .chunk = rank,
                                            .sources = {{.place = {0, Area::kOut}, .raw = true},
                                                        {.place = {1, Area::kOut}, .raw = true}},
                                            .destinations = {{0, Area::kOut}, {1, Area::kOut}}},
                                           {.kind = Instruction::Kind::kSync}},
                                 .shares_out = true,
                                 .unshared = {rank == 0, rank == 1}};
    EXPECT_EQ(program, expected);
  }
}

// --- walk-step.md ----------------------------------------------------------------------------
struct Sample {
  std::array<float, 2> x;
};

/// Of the mean of (w.x)^2 / 2 over the samples: its value and its gradient.
float loss_of(std::span<const Sample> samples, std::span<const float> w, std::span<float> g) {
  float loss = 0;
  std::ranges::fill(g, 0.0f);
  const auto n = static_cast<float>(samples.size());
  for (const Sample& s : samples) {
    const float output = w[0] * s.x[0] + w[1] * s.x[1];
    loss += output * output / 2 / n;
    for (std::size_t i = 0; i < 2; ++i) g[i] += output * s.x[i] / n;
  }
  return loss;
}

TEST(WalkStep, UpdatesBothReplicasAlike) {
  on_two_ranks([](comm::Communicator& world, std::span<float> memory) {
    const std::vector<Sample> samples =
        world.rank() == 0 ? std::vector<Sample>{{{1, 0}}, {{0, 1}}} : std::vector<Sample>{{{2, 1}}};
    std::vector<float> w = {1, 2};
    const float loss = loss_of(samples, w, memory.subspan(1, 2));
    EXPECT_EQ(loss, world.rank() == 0 ? 1.25f : 8.0f);
    EXPECT_EQ(memory[1], world.rank() == 0 ? 0.5f : 8.0f);
    EXPECT_EQ(memory[2], world.rank() == 0 ? 1.0f : 4.0f);
    memory[0] = 1;  // the flag: there is a gradient
    const auto weight = static_cast<double>(samples.size());
    const comm::Buffer bucket = memory.first(3);
    EXPECT_TRUE(world.all_reduce({&bucket, 1}, comm::ReduceOp::kWeightedAverage, weight).ok());
    EXPECT_FLOAT_EQ(memory[0], 1);
    EXPECT_FLOAT_EQ(memory[1], 3);
    EXPECT_FLOAT_EQ(memory[2], 2);
    const optim::GradientTerm gradient{.data = &memory[1]};
    optim::update({.kind = optim::Options::Kind::kSgd}, {.lr = 0.1},
                  {.begin = 0, .end = 2, .weights = w.data(), .gradients = {&gradient, 1}});
    EXPECT_FLOAT_EQ(w[0], 0.7f);
    EXPECT_FLOAT_EQ(w[1], 1.8f);
    std::array<double, 2> agreed = {loss * weight, weight};
    EXPECT_TRUE(world.all_reduce(agreed, comm::ReduceOp::kSum).ok());
    EXPECT_EQ(agreed, (std::array<double, 2>{10.5, 3}));
  });
}

// One copy per host: the owner of a slice adds up both ranks' gradients inside of its update.
TEST(WalkStep, OneCopyIsUpdatedFromBothGradients) {
  const std::array<float, 2> gradients[] = {{0.5, 1}, {8, 4}};
  std::vector<float> w = {1, 2};
  const optim::GradientTerm sources[] = {{.data = gradients[0].data(), .scale = 2.0 / 3},
                                         {.data = gradients[1].data(), .scale = 1.0 / 3}};
  optim::update({.kind = optim::Options::Kind::kSgd}, {.lr = 0.1},
                {.begin = 0, .end = 2, .weights = w.data(), .gradients = sources});
  EXPECT_FLOAT_EQ(w[0], 0.7f);
  EXPECT_FLOAT_EQ(w[1], 1.8f);
}

}  // namespace
}  // namespace stormo
