// Holds the plans that docs/ shows equal to what the passes make.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/logical_shards.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/inside_layers/tensor_parallel.h>
#include <stormo/parallel/inside_layers/vertical.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/bucket.h>
#include <stormo/parallel/replicas/choose.h>
#include <stormo/parallel/replicas/host_shared.h>
#include <stormo/parallel/replicas/local_averages.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/replicas/mix.h>
#include <stormo/parallel/replicas/outer_update.h>
#include <stormo/parallel/replicas/parameter_averaging.h>
#include <stormo/parallel/replicas/population.h>
#include <stormo/parallel/replicas/state_periods.h>
#include <stormo/parallel/replicas/streaming.h>
#include <stormo/parallel/servers/elastic_averaging.h>
#include <stormo/parallel/servers/parameter_server.h>
#include <stormo/parallel/sharding/sharded.h>
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

/// A plan, and its passes as the document writes them.
struct Example {
  std::string passes;
  plan::StepPlan plan;
};
#define STORMO_EXAMPLE_OF(model, ...) \
  Example { #__VA_ARGS__, compose(one_device(model), {__VA_ARGS__}).take_or_throw() }
#define STORMO_EXAMPLE(...) STORMO_EXAMPLE_OF(made_by({}).model, __VA_ARGS__)

std::vector<Example> examples() {
  return {
      STORMO_EXAMPLE(mirrored(2), bucket(24)),
      STORMO_EXAMPLE(host_shared(1, 2)),
      STORMO_EXAMPLE(sharded({.stage = 1, .ranks = 2})),
      STORMO_EXAMPLE(mirrored(2), sharded({.stage = 2, .ranks = 2})),
      STORMO_EXAMPLE(sharded({.stage = 3, .ranks = 2, .prefetch = 1})),
      STORMO_EXAMPLE(micro_batches(2), scale_loss(), clip_gradients(), mirrored(2), recompute()),
      STORMO_EXAMPLE(mirrored(2), logical_shards(6)),
      STORMO_EXAMPLE(clip_gradients(), parameter_averaging(3, 8)),
      STORMO_EXAMPLE(parameter_averaging(4, 8), local_averages(2, 2)),
      STORMO_EXAMPLE(parameter_averaging(3, 8), state_periods({24, 48})),
      STORMO_EXAMPLE(parameter_averaging(3, 8, false), outer_update()),
      STORMO_EXAMPLE(parameter_averaging(3, 8, false), outer_update(),
                     streaming({.fragments = 2, .delay = 3})),
      STORMO_EXAMPLE(parameter_averaging(3, 8, false), gossip({.tracks_gradients = true})),
      STORMO_EXAMPLE(parameter_averaging(3, 8), tournament("ring")),
      STORMO_EXAMPLE(parameter_averaging(3, 8), codistillation("complete")),
      STORMO_EXAMPLE(clip_gradients(), parameter_server(3)),
      STORMO_EXAMPLE(clip_gradients(), parameter_server(2, {}, 2)),
      STORMO_EXAMPLE(clip_gradients(), elastic_averaging(3, 8)),
      STORMO_EXAMPLE(micro_batches(3), pipeline({})),
      STORMO_EXAMPLE(micro_batches(2), pipeline({.schedule = zero_bubble()})),
      STORMO_EXAMPLE(micro_batches(2), pipeline({.schedule = pipedream_2bw()})),
      STORMO_EXAMPLE(pipeline({.schedule = delayed_gradients()})),
      STORMO_EXAMPLE_OF(split_layers(), clip_gradients(), tensor_parallel(2), mirrored(2)),
      STORMO_EXAMPLE_OF(layers_by_columns(), clip_gradients(),
                        vertical({.ranks = 2, .labels = 1, .columns = {1, 3}})),
      STORMO_EXAMPLE(mirrored(2), choose(1, 40))};
}

TEST(PlanDocuments, ShowWhatThePassesMake) {
  const std::string page = read("docs/step-plan-examples.md");
  EXPECT_EQ(blocks_of("docs/step-plan-examples.md").size(), examples().size());
  for (const Example& example : examples()) {
    const std::size_t at = page.find("\n`" + example.passes + "`");
    ASSERT_NE(at, std::string::npos) << "no paragraph begins with `" << example.passes << "`";
    const std::string block = "\n```step_plan\n" + to_text(example.plan) + "```\n";
    EXPECT_TRUE(page.substr(page.find("\n```step_plan\n", at)).starts_with(block))
        << "behind `" << example.passes << "` must be:" << block;
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

// With what its range refers to.
TEST(PlanDocuments, HaveARowForEveryAction) {
  const std::string page = read("docs/step-plan.md");
  for (const plan::ActionRow& row : plan::action_rows()) {
    const std::string begin = "\n| `" + std::string(row.word) + "` |";
    const std::size_t at = page.find(begin);
    ASSERT_NE(at, std::string::npos) << row.word;
    const std::size_t from = at + begin.size();
    const std::string range = page.substr(from, page.find('|', from) - from);
    EXPECT_EQ(range.find("segment") != std::string::npos, row.range == plan::RangeOf::kSegments)
        << row.word;
    EXPECT_EQ(range.find("parameter") != std::string::npos, row.range == plan::RangeOf::kParameters)
        << row.word;
  }
}

/// The right side of a rule in the grammar.
std::string rule(const std::string& grammar, const std::string& name) {
  const std::size_t begin = grammar.find("\n" + name + " ");
  EXPECT_NE(begin, std::string::npos) << name;
  std::size_t end = grammar.find('\n', begin + 1);
  while (grammar[end + 1] == ' ') end = grammar.find('\n', end + 1);
  return grammar.substr(begin, end - begin);
}

TEST(PlanDocuments, HaveAGrammarWithEveryWord) {
  const std::string page = read("docs/adr/0003-plan-text-form.md");
  for (const plan::ActionRow& row : plan::action_rows()) {
    EXPECT_THAT(rule(page, "kind"), HasSubstr("\"" + std::string(row.word) + "\""));
  }
  for (const CodecRow& row : codec_rows()) {
    if (row.codec == Codec::kNone) continue;
    EXPECT_THAT(rule(page, "codec"), HasSubstr("\"" + std::string(row.word) + "\""));
  }
  for (const char* word : {"batch", "delay", "over", "async", "codec", "by", "every"}) {
    EXPECT_THAT(rule(page, "action"), HasSubstr(std::string("\"") + word + "\""));
  }
  for (const char* word :
       {"scaled_loss", "clipped", "chosen", "sequence_parallel", "newest_weights", "labels"})
    EXPECT_THAT(rule(page, "step_plan"), HasSubstr(std::string("\"") + word + "\""));
  for (const char* word :
       {"borrows", "stage", "heads", "sums", "gradient_sums", "loss_sums", "splits_output",
        "positions", "keys", "window", "split_window", "states", "norms", "spatial_all_reduce"})
    EXPECT_THAT(rule(page, "segment"), HasSubstr(std::string("\"") + word + "\""));
  for (const char* word : {"frozen", "sparse", "elsewhere", "split", "dim", "blocks", "counts"})
    EXPECT_THAT(rule(page, "parameter"), HasSubstr(std::string("\"") + word + "\""));
}

/// The first words of the lines in a document's blocks ```text.
std::set<std::string> first_words(const std::string& page) {
  std::set<std::string> out;
  std::istringstream lines(page);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      inside = line == "```text";
    } else if (inside) {
      out.insert(line.substr(0, line.find(' ')));
    }
  }
  return out;
}

// Each sketch has a word that plans do not have yet.
TEST(PlanDocuments, SketchOnlyWhatDoesNotExist) {
  const std::string page = read("docs/step-plan-sketches.md");
  std::set<std::string> known = {"mesh", "state"};
  for (const plan::ActionRow& row : plan::action_rows()) known.emplace(row.word);
  std::set<std::string> unknown;
  for (const std::string& word : first_words(page)) {
    if (!known.contains(word)) unknown.insert(word);
  }
  EXPECT_EQ(unknown, std::set<std::string>());
  std::size_t sketches = 0;
  for (std::size_t at = page.find("\n## "); at != std::string::npos;) {
    const std::size_t next = page.find("\n## ", at + 1);
    const std::string sketch = page.substr(at, next - at);
    const bool is_new = std::ranges::any_of(
        std::vector<std::string>{" codec ", " output "},
        [&](const std::string& word) { return sketch.find(word) != std::string::npos; });
    EXPECT_TRUE(is_new) << "exists now: move it to docs/step-plan-examples.md" << sketch;
    ++sketches;
    at = next;
  }
  EXPECT_GE(sketches, 2u);
}

}  // namespace
}  // namespace stormo::parallel
