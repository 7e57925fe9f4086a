// Images whose places ranks share: ranks do what the plan says and send what it predicts, and train
// as one process does; and locally connected layers, whose units they share. That layers and models
// compute the same on a grid is tested in tests/unit/model/places_test.cc.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <torch/torch.h>

#include <stormo/model/locally_connected.h>
#include <stormo/model/resnet20.h>

#include "tests/long.h"
#include "tests/unit/train/run_of_one_process.h"

namespace stormo::train {
namespace {

using test::Batch;
using test::Problem;
using Way = test::CutWay;

Problem resnet_problem(std::int64_t height, std::int64_t width) {
  return {"resnet20",
          [=] {
            return std::make_shared<model::ResNet20>(
                model::ResNet20Options{.channels = 2, .height = height, .width = width});
          },
          [=](std::int64_t rows) {
            return Batch{torch::randn({rows, 2, height, width}), torch::randint(10, {rows})};
          }};
}

Problem local_problem() {
  return {"local",
          [] {
            return std::make_shared<model::LocalNet>(
                model::LocalNetOptions{.channels = 2, .height = 32, .width = 20});
          },
          [](std::int64_t rows) {
            return Batch{torch::randn({rows, 2, 32, 20}), torch::randint(10, {rows})};
          }};
}

class Spatial : public testing::TestWithParam<Way> {};

TEST_P(Spatial, IsThePlanAndTrainsAsOneProcess) {
  std::vector<Problem> problems = {test::cnn_problem()};
  // in the short form a net of 20 layers where it shows more than the small one
  const std::string& name = GetParam().name;
  if (is_long_form() || name == "two_by_two" || name == "one_by_four") {
    problems.push_back(resnet_problem(18, 20));
  }
  if (is_long_form() || name == "micro_batches") problems.push_back(resnet_problem(16, 16));
  for (const Problem& problem : problems) {
    const bool has_replicas = GetParam().name.starts_with("replicas");
    // each replica normalises by statistics of its own
    if (has_replicas && problem.name == "resnet20") continue;
    test::expect_run_of_one_process(GetParam(), problem);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Spatial,
    testing::Values(
        Way{"one_by_two", {2}, {.spatial = {1, 2}}},
        Way{"two_by_one_on_hosts", {1, 1}, {.spatial = {2, 1}}},
        Way{"two_by_two", {1, 1, 1, 1}, {.spatial = {2, 2}}, {.clip = true}},
        Way{"one_by_four", {1, 3}, {.spatial = {1, 4}}},
        Way{"replicas_on_hosts", {2, 2}, {.spatial = {1, 2}}},
        Way{"micro_batches", {2}, {.spatial = {2, 1}}, {.micro_batches = 2, .clip = true}}),
    [](const auto& way) { return way.param.name; });

TEST(LocalConnectivity, IsThePlanAndTrainsAsOneProcess) {
  for (const Way& way : {Way{"two", {1, 1}, {.tensor = 2}},
                         Way{"four", {1, 1, 1, 1}, {.tensor = 4}, {.micro_batches = 2}},
                         Way{"replicas", {2, 2}, {.tensor = 2}, {.clip = true}}}) {
    test::expect_run_of_one_process(way, local_problem());
  }
}

}  // namespace
}  // namespace stormo::train
