// The values that docs/walk-tensor.md follows: strategy.tensor of a recipe becomes slices of two
// matrices on two ranks, and the sums of what they compute.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <stormo/model/chain.h>
#include <stormo/plan/project.h>
#include <stormo/train/planner/planned_step.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/step/strategy.h>

#include "tests/unit/train/cut_model.h"

namespace stormo::train {
namespace {

constexpr const char* kRecipe = R"(schema_version = 1
[model]
kind = "mlp"
sizes = [2, 4, 2]
[train]
global_batch = 1
steps = 1
[strategy]
tensor = 2
)";

void set_weights(const std::vector<torch::Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  parameters[0].copy_(torch::tensor({{1.0f, 0.0f}, {0.0f, 1.0f}, {1.0f, 1.0f}, {2.0f, 0.0f}}));
  parameters[2].copy_(torch::tensor({{1.0f, 1.0f, 1.0f, 1.0f}, {0.0f, 1.0f, 0.0f, 1.0f}}));
  parameters[1].zero_();
  parameters[3].zero_();
}

void expect_the_values_of_the_page(comm::Communicator& world, const TrainerOptions& options,
                                   const Task& task) {
  const plan::StepPlan plan =
      planned_step(options, task, world.ranks_per_host()).take_or_throw().plan;
  ASSERT_EQ(plan.mesh.size(), 2);
  EXPECT_EQ(plan.mesh.find(plan::kTensorAxis), 0);
  EXPECT_EQ(plan.strategy, "one_device+tensor2");
  const plan::StepPlan own = project(plan, world.rank());
  std::vector<std::int64_t> elements;
  for (const plan::ParameterShape* p : flatten(own.model)) elements.push_back(p->elements);
  EXPECT_EQ(elements, (std::vector<std::int64_t>{4, 2, 4, 2}));
  const AxisGroups groups(world, plan);
  const auto store = make_store(plan, groups, task.module, options);
  const std::vector<torch::Tensor> parameters = task.module->parameters();
  const bool first = world.rank() == 0;
  const torch::Tensor rows = first ? torch::tensor({{1.0f, 0.0f}, {0.0f, 1.0f}})
                                   : torch::tensor({{1.0f, 1.0f}, {2.0f, 0.0f}});
  EXPECT_TRUE(parameters[0].equal(rows));
  EXPECT_TRUE(parameters[2].equal(torch::tensor({{1.0f, 1.0f}, {0.0f, 1.0f}})));
  const torch::Tensor x = torch::tensor({{1.0f, 2.0f}}).requires_grad_();
  const torch::Tensor y = task.forward(x);
  EXPECT_TRUE(y.equal(torch::tensor({{8.0f, 4.0f}})));
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(torch::tensor({{6.0f, 3.0f}})));
}

TEST(WalkTensor, AKeyOfARecipeBecomesSlicesAndSums) {
  const ParsedRecipe parsed = parse_recipe(kRecipe, "page.toml", ".", {});
  ASSERT_TRUE(parsed.errors.empty());
  EXPECT_EQ(parsed.at("strategy.tensor"), "page.toml:9:10: strategy.tensor: ");
  const TrainerOptions& options = parsed.recipe.train;
  ASSERT_EQ(strategy_of(options)->tensor, 2);
  test::Group group = comm::make_hosts({2});
  std::vector<Task> tasks;
  for (int rank = 0; rank < 2; ++rank) {
    tasks.push_back(make_task(parsed.recipe, {}).take_or_throw());
    set_weights(tasks.back().module->parameters());
  }
  test::on_ranks(group, [&](comm::Communicator& world) {
    expect_the_values_of_the_page(world, options, tasks[static_cast<std::size_t>(world.rank())]);
  });
}

}  // namespace
}  // namespace stormo::train
