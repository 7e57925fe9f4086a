// Tensors between stages: by reference in a host, in the background between hosts.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stormo/tensor/allocator.h>
#include <stormo/train/world/stage_link.h>

#include "tests/unit/train/cut_model.h"

namespace stormo::train {
namespace {

constexpr std::int64_t kLarge = 64 << 10;  // elements; above tensor::kArenaThresholdBytes

/// Calls `body` for each stage, in a thread; `hosts`: stages of each.
void on_stages(const std::vector<int>& hosts, const std::function<void(StageLink&)>& body) {
  test::Group group = comm::make_hosts(hosts);
  test::on_ranks(group, [&](comm::Communicator& stages) {
    const tensor::ThreadArena arena(stages.arena());
    StageLink link(stages);
    body(link);
  });
}

TEST(StageLink, InAHostATensorIsReadWhereItWasWritten) {
  on_stages({2}, [](StageLink& link) {
    if (link.stage() == 0) {
      throw_if_error(link.send(1, 7, torch::arange(kLarge), {}));
      EXPECT_EQ(link.bytes_copied(), 0u);
      EXPECT_EQ(link.bytes_shared(), static_cast<std::uint64_t>(kLarge) * 8);
    } else {
      throw_if_error(link.expect(0, 7, {}));
      EXPECT_TRUE(link.receive(0, 7).take_or_throw().equal(torch::arange(kLarge)));
    }
  });
}

TEST(StageLink, WhatIsLentStaysUntilItIsDropped) {
  on_stages({2}, [](StageLink& link) {
    const auto values = [](int i) { return torch::full({kLarge}, i); };
    if (link.stage() == 0) {
      // memory of a tensor that is dropped here would be used again for the next one
      for (int i = 0; i < 20; ++i) throw_if_error(link.send(1, i + 1, values(i), {}));
    } else {
      std::vector<torch::Tensor> received;
      for (int i = 0; i < 20; ++i) throw_if_error(link.expect(0, i + 1, {}));
      for (int i = 0; i < 20; ++i) received.push_back(link.receive(0, i + 1).take_or_throw());
      for (int i = 0; i < 20; ++i) EXPECT_TRUE(received[i].equal(values(i))) << i;
    }
  });
}

TEST(StageLink, TensorsOfAnyFormArrive) {
  const std::vector<torch::Tensor> sent = {torch::randn({3, 5, 7}),
                                           torch::randn({4, 6}).t(),
                                           torch::randn({300, 300}, torch::kBFloat16),
                                           torch::empty({0, 4}),
                                           torch::tensor(3.0),
                                           torch::Tensor(),
                                           torch::arange(kLarge).to(torch::kInt64)};
  for (const std::vector<int>& hosts : {std::vector<int>{2}, {1, 1}}) {
    on_stages(hosts, [&](StageLink& link) {
      for (int step = 0; step < 3; ++step) {
        for (std::size_t i = 0; i < sent.size(); ++i) {
          if (link.stage() == 0) {
            throw_if_error(link.send(1, i + 1, sent[i], {2}));
          } else {
            throw_if_error(link.expect(0, i + 1, {2}));
          }
        }
        for (std::size_t i = sent.size(); i-- > 0 && link.stage() == 1;) {  // in another order
          const torch::Tensor x = link.receive(0, i + 1).take_or_throw();
          ASSERT_EQ(x.defined(), sent[i].defined());
          if (x.defined()) {
            EXPECT_TRUE(x.equal(sent[i])) << i;
          }
        }
      }
    });
  }
}

// Between hosts no buffer of a kernel takes so much.
TEST(StageLink, BothMaySendMoreThanAnyBufferHolds) {
  constexpr std::int64_t kHuge = 16 << 20;
  for (const std::vector<int>& hosts : {std::vector<int>{2}, {1, 1}}) {
    on_stages(hosts, [&](StageLink& link) {
      const int peer = 1 - link.stage();
      for (int step = 0; step < 3; ++step) {
        const torch::Tensor mine = torch::full({kHuge}, link.stage() + step, torch::kUInt8);
        // the order of a plan: first the tensor of stage 0
        for (const int from : {0, 1}) {
          throw_if_error(from == link.stage() ? link.send(peer, from + 1, mine, {})
                                              : link.expect(peer, from + 1, {}));
        }
        const torch::Tensor x = link.receive(peer, peer + 1).take_or_throw();
        EXPECT_EQ(x[kHuge - 1].item<int>(), peer + step);
      }
    });
  }
}

TEST(StageLink, TheEndsMayCallInAnyOrder) {
  for (const std::vector<int>& hosts : {std::vector<int>{2}, {1, 1}}) {
    on_stages(hosts, [](StageLink& link) {
      const int peer = 1 - link.stage();
      std::vector<torch::Tensor> kept;  // one of the step before has the same key
      for (int step = 0; step < 3; ++step) {
        const auto values = [&](int from, int key) {
          return torch::full({kLarge}, 100 * step + 10 * from + key);
        };
        for (const int i : {0, 1, 2}) {
          const int key = link.stage() == 0 ? i : 2 - i;
          throw_if_error(link.send(peer, key, values(link.stage(), key), {}));
        }
        for (const int key : {1, 2, 0}) throw_if_error(link.expect(peer, key, {}));
        EXPECT_EQ(link.expect(peer, 1, {}).code(), Code::kBadPlan);
        for (const int key : {2, 0, 1}) {
          kept.push_back(link.receive(peer, key).take_or_throw());
          EXPECT_TRUE(kept.back().equal(values(peer, key))) << step << " " << key;
        }
      }
    });
  }
}

TEST(StageLink, ASenderDoesNotWaitWhenNobodyReceives) {
  for (const std::vector<int>& hosts : {std::vector<int>{2}, {1, 1}}) {
    test::Group group = comm::make_hosts(hosts);
    std::atomic<bool> all_sent{false};
    test::on_ranks(group, [&](comm::Communicator& stages) {
      constexpr int kMany = 5000;  // their headers exceed what a sender may send ahead
      const tensor::ThreadArena arena(stages.arena());
      StageLink link(stages);
      if (link.stage() == 0) {
        for (int key = 0; key < kMany; ++key) {
          throw_if_error(link.send(1, key, torch::full({2}, key), {}));
        }
        all_sent = true;
        return;
      }
      while (!all_sent) std::this_thread::yield();
      for (int key = 0; key < kMany; ++key) throw_if_error(link.expect(0, key, {}));
      for (int key = kMany; key-- > 0;) {
        EXPECT_EQ(link.receive(0, key).take_or_throw()[0].item<int>(), key);
      }
    });
  }
}

TEST(StageLink, AKeyThatIsNoTagIsRefused) {
  on_stages({2}, [](StageLink& link) {
    const auto outcome = link.send(1 - link.stage(), StageLink::kMaxKey + 1, {}, {});
    EXPECT_EQ(outcome.code(), Code::kBadPlan);
  });
}

TEST(StageLink, WhatNobodyReceivedIsDrained) {
  on_stages({2}, [](StageLink& link) {
    for (int step = 0; step < 2; ++step) {
      for (const int key : {1, 2}) {
        throw_if_error(link.stage() == 0 ? link.send(1, key, torch::full({kLarge}, key), {})
                                         : link.expect(0, key, {}));
      }
      if (link.stage() == 0) continue;
      EXPECT_EQ(link.receive(0, 2).take_or_throw()[0].item<int>(), 2);
      throw_if_error(link.drain());
      EXPECT_EQ(link.receive(0, 1).status().code(), Code::kBadPlan);
    }
  });
}

TEST(StageLink, BetweenHostsAShapeFollowsFromThatOfTheInput) {
  on_stages({1, 1}, [](StageLink& link) {
    if (link.stage() == 1) {
      for (int i = 0; i < 2; ++i) {
        throw_if_error(link.expect(0, 1, {i}));
        EXPECT_EQ(link.receive(0, 1).take_or_throw().numel(), 4 + i);
      }
      return;
    }
    throw_if_error(link.send(1, 1, torch::zeros({4}), {0}));
    throw_if_error(link.send(1, 1, torch::zeros({5}), {1}));
    const Status other = link.send(1, 1, torch::zeros({6}), {1});
    EXPECT_EQ(other.code(), Code::kInvalidArgument);
    EXPECT_NE(other.message().find("another shape than in the step before"), std::string::npos);
  });
}

// Layers and backward write activations and their gradients where the other stage reads them.
TEST(StageLink, AStepOfAPipelineInAHostCopiesNothing) {
  constexpr std::size_t kWidth = 128, kRows = 512, kSteps = 2;
  const test::Problem wide{
      "wide mlp",
      [] {
        return std::make_shared<model::Mlp>(std::vector<std::int64_t>{8, kWidth, kWidth, 5});
      },
      [](std::int64_t rows) {
        return test::Batch{torch::randn({rows, 8}), torch::randint(5, {rows})};
      }};
  for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"}) {
    const test::PlanRun run =
        run_of({schedule, {2}, {.pipeline = 2, .schedule = schedule}, {.micro_batches = 4}}, wide,
               wide.batches(kSteps, kRows));
    test::on_plan_ranks(run, [&](test::PlanRank& rank) {
      const tensor::ThreadArena arena(
          rank.groups.over({plan::kStageAxis}).take_or_throw()->arena());
      rank.steps(kSteps);
      const StageLink& link = *rank.store().cut().stages;
      EXPECT_EQ(link.bytes_copied(), 0u) << schedule << ", stage " << link.stage();
      EXPECT_EQ(link.bytes_shared(), kSteps * kRows * kWidth * sizeof(double)) << schedule;
      throw_if_error(rank.groups.world().barrier());
    });
  }
}

}  // namespace
}  // namespace stormo::train
