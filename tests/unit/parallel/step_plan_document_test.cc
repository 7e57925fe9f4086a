// Holds the plans that docs/ shows equal to what the passes make.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/analysis/step/step_verify.h>
#include <stormo/parallel/bucket.h>
#include <stormo/parallel/elastic_averaging.h>
#include <stormo/parallel/gradient_scale.h>
#include <stormo/parallel/host_shared.h>
#include <stormo/parallel/micro_batches.h>
#include <stormo/parallel/mirrored.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/parameter_averaging.h>
#include <stormo/parallel/parameter_server.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline.h>
#include <stormo/parallel/recompute.h>
#include <stormo/parallel/sharded.h>
#include <stormo/parallel/tensor_parallel.h>
#include <stormo/parallel/vertical.h>
#include <stormo/plan/project.h>

#include "tests/built.h"

namespace stormo::parallel {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kRoot = testing::repository();

std::string read(const std::filesystem::path& path) {
  std::ifstream file(kRoot / path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The texts of a document's blocks ```step_plan.
std::vector<std::string> blocks_of(const std::filesystem::path& document) {
  const std::string begin = "\n```step_plan\n", end = "\n```\n", text = read(document);
  std::vector<std::string> out;
  for (std::size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at)) {
    at += begin.size();
    out.push_back(text.substr(at, text.find(end, at) + 1 - at));
  }
  return out;
}

/// The models of the documents have one parameter in each segment.
using Segments = std::vector<std::pair<std::string, int>>;

plan::StepPlan made_by(const std::vector<Pass>& passes,
                       const Segments& segments = {{"hidden", 12}, {"output", 6}}) {
  plan::ModelShape model;
  for (const auto& [name, elements] : segments) {
    model.segments.push_back({.name = name,
                              .parameters = {{name + ".weight", elements}},
                              .flops_per_sample = std::int64_t{2} * elements,
                              .borrowed = {}});
  }
  return compose(one_device(std::move(model)), passes).take_or_throw();
}

/// The same layers, the first cut by its outputs and the second by its inputs.
plan::ModelShape split_layers() {
  plan::ModelShape model = made_by({}).model;
  model.segments[0].parameters[0].split = {.units = 6};
  model.segments[0].sums.backward = {2};
  model.segments[0].splits_output = true;
  model.segments[1].parameters[0].split = {.dim = 1, .units = 6};
  model.segments[1].sums.forward = {1};
  return model;
}

/// The same layers, of 4 columns, 3 hidden units and 2 outputs; ranks have some of the columns.
plan::ModelShape layers_by_columns() {
  plan::ModelShape model = made_by({}).model;
  model.segments[0].parameters[0].split = {.dim = 1, .units = 4};
  model.segments[0].sums.forward = {3};
  model.segments[1].sums.loss = {3};
  return model;
}

/// In the order of docs/step-plan-examples.md.
std::vector<plan::StepPlan> plans_of_today() {
  return {made_by({mirrored(2), bucket(24)}),
          made_by({host_shared(1, 2)}),
          made_by({sharded({.stage = 1, .ranks = 2})}),
          made_by({mirrored(2), sharded({.stage = 2, .ranks = 2})}),
          made_by({sharded({.stage = 3, .ranks = 2, .prefetch = 1})}),
          made_by({micro_batches(2), scale_loss(), clip_gradients(), mirrored(2), recompute()}),
          made_by({clip_gradients(), parameter_averaging(3, 8)}),
          made_by({clip_gradients(), parameter_server(3)}),
          made_by({clip_gradients(), parameter_server(2, {}, 2)}),
          made_by({clip_gradients(), elastic_averaging(3, 8)}),
          made_by({micro_batches(3), pipeline({})}),
          made_by({micro_batches(2), pipeline({.schedule = zero_bubble()})}),
          made_by({micro_batches(2), pipeline({.schedule = pipedream_2bw()})}),
          compose(one_device(split_layers()), {clip_gradients(), tensor_parallel(2), mirrored(2)})
              .take_or_throw(),
          compose(one_device(layers_by_columns()),
                  {clip_gradients(), vertical({.ranks = 2, .labels = 1, .columns = {1, 3}})})
              .take_or_throw()};
}

TEST(PlanDocuments, ShowWhatThePassesMake) {
  const std::vector<std::string> shown = blocks_of("docs/step-plan-examples.md");
  const std::vector<plan::StepPlan> made = plans_of_today();
  EXPECT_EQ(shown.size(), made.size());
  for (std::size_t i = 0; i < made.size(); ++i) {
    const std::string text = i < shown.size() ? shown[i] : std::string();
    EXPECT_TRUE(text == to_text(made[i])) << "block " << i << " must be:\n" << to_text(made[i]);
  }
}

TEST(PlanDocuments, QuoteThePlanOfStepsThatOverlap) {
  const std::string plan =
      to_text(made_by({micro_batches(2), pipeline({.schedule = pipedream_2bw()})}));
  const std::string page = read("docs/step-plan.md");
  const std::size_t begin = page.find("```text\n", page.find("## Steps that overlap")) + 8;
  std::istringstream quoted(page.substr(begin, page.find("```", begin) - begin));
  int lines = 0;
  for (std::string line; std::getline(quoted, line); ++lines) {
    EXPECT_NE(plan.find("\n" + line), std::string::npos) << line;
  }
  EXPECT_EQ(lines, 4);
}

TEST(PlanDocuments, ShowThePartOfARank) {
  const std::string part = to_text(plan::project(made_by({micro_batches(3), pipeline({})}), 1));
  EXPECT_THAT(read("docs/step-plan-examples.md"),
              HasSubstr("```text\n" + part.substr(part.find("action 0")) + "```\n"));
}

TEST(PlanDocuments, ShowPlansThatVerify) {
  for (const char* document :
       {"docs/step-plan.md", "docs/step-plan-examples.md", "docs/walk-step.md"}) {
    EXPECT_FALSE(blocks_of(document).empty()) << document;
    for (const std::string& text : blocks_of(document)) {
      const auto plan = plan::parse_step_plan(text);
      ASSERT_TRUE(plan.ok()) << document << ": " << plan.status().message() << "\n" << text;
      const Status sound = analysis::verify(*plan);
      EXPECT_TRUE(sound.ok()) << document << ": " << sound.message() << "\n" << text;
    }
  }
}

TEST(PlanDocuments, WalkThroughAPlanOfReplicas) {
  const Segments linear = {{"linear", 2}};
  EXPECT_THAT(blocks_of("docs/walk-step.md"),
              ::testing::ElementsAre(to_text(made_by({mirrored(2)}, linear))));
  const std::string shared = to_text(made_by({host_shared(1, 2)}, linear));
  const std::size_t from = shared.find("action 4"), to = shared.find("action 7");
  EXPECT_THAT(read("docs/walk-step.md"),
              HasSubstr("```text\n" + shared.substr(from, to - from) + "```\n"));
}

TEST(PlanDocuments, ExplainTheGoldenPlan) {
  EXPECT_THAT(blocks_of("docs/step-plan.md"),
              ::testing::ElementsAre(read("tests/golden/step_plan_mirrored.txt")));
}

TEST(PlanDocuments, HaveARowForEveryAction) {
  const std::string page = read("docs/step-plan.md");
  for (const plan::ActionKind kind : plan::kActionKinds) {
    EXPECT_THAT(page, HasSubstr("\n| `" + std::string(to_string(kind)) + "` |"));
  }
}

TEST(PlanDocuments, SketchOnlyWhatDoesNotExist) {
  const std::string page = read("docs/step-plan-sketches.md");
  for (const std::string word : {"move", "mix", "update_outer", "choose"}) {
    EXPECT_THAT(page, HasSubstr(word));
    for (const plan::ActionKind kind : plan::kActionKinds) {
      EXPECT_NE(to_string(kind), word) << "exists now: move it to docs/step-plan-examples.md";
    }
  }
}

}  // namespace
}  // namespace stormo::parallel
