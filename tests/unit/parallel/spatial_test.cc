// Spatial cuts as plans: who has which places, what is sent and added up, and what is refused. That
// ranks do what these plans say is tested in tests/unit/train/spatial_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_simulate.h>
#include <stormo/analysis/transfer/collectives.h>
#include <stormo/analysis/transfer/crossings.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/inside_layers/spatial.h>
#include <stormo/parallel/inside_layers/tensor_parallel.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using analysis::Collective;
using analysis::Crossing;
using plan::ActionKind;
using plan::GoalKind;
using plan::StepPlan;
using plan::Window;

constexpr std::int64_t kSamples = 5, kChannels = 4, kHeight = 12, kWidth = 16;

/// Two convolutions of the size of their input, and a head over all places.
plan::ModelShape network(int kernel) {
  plan::ModelShape out;
  for (const std::string name : {"conv0", "conv1", "head"}) {
    const Window window{kChannels, kHeight, kWidth, kernel, 1, (kernel - 1) / 2};
    out.segments.push_back({.name = name,
                            .parameters = {{.name = name + ".weight", .elements = 80}},
                            .flops_per_sample = 100,
                            .borrowed = {},
                            .windows = {window},
                            .norms = {kChannels}});
  }
  out.segments[2].windows = {{kChannels, kHeight, kWidth}};
  out.segments[2].norms = {};
  out.segments[2].spatial_all_reduce = kChannels;
  return out;
}

StepPlan plan_of(const std::vector<Pass>& passes, int kernel = 3) {
  return compose(one_device(network(kernel)), passes).take_or_throw();
}

TEST(SpatialPlan, SaysWhatIsReadAndAddedUp) {
  const StepPlan p = plan_of({spatial(2, 3), mirrored(2)});
  EXPECT_EQ(p.strategy, "one_device+spatial2x3+mirrored");
  const std::string text = to_text(p);
  for (const char* line :
       {"mesh dp=2 height=2 width=3\n",
        "segment 0: conv0 flops=100 window 4,12,16 kernel 3 padding 1 norms 4\n",
        "segment 2: head flops=100 window 4,12,16 kernel 1 spatial_all_reduce 4\n",
        "state parameters replicate replicate replicate\n",
        "all_reduce 0-2 over dp,height,width"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << " in\n" << text;
  }
  EXPECT_EQ(*plan::parse_step_plan(text), p);
  const std::uint64_t before = hash(p);
  for (const auto& change : std::vector<void (*)(StepPlan&)>{
           [](StepPlan& q) { q.model.segments[0].windows[0].kernel = 5; },
           [](StepPlan& q) { q.model.segments[0].windows[0].stride = 2; },
           [](StepPlan& q) { q.model.segments[1].norms[0] = 5; },
           [](StepPlan& q) { q.model.segments[2].spatial_all_reduce = 5; }}) {
    StepPlan other = p;
    change(other);
    EXPECT_NE(hash(other), before);
    EXPECT_EQ(*plan::parse_step_plan(to_text(other)), other);
  }
}

TEST(SpatialPlan, RanksOfAGridLoadTheSame) {
  const StepPlan p = plan_of({spatial(2, 3), mirrored(2)});
  for (Rank r = 0; r < 12; ++r) {
    EXPECT_EQ(data_part(p.mesh, r), (plan::Part{r / 6, 2}));
    EXPECT_EQ(rows_part(p.mesh, r), (plan::Part{r / 3 % 2, 2}));
    EXPECT_EQ(columns_part(p.mesh, r), (plan::Part{r % 3, 3}));
    EXPECT_EQ(sample_part(p.mesh, r), (plan::Part{r % 6, 6}));
    EXPECT_EQ(copy_of_model(p.mesh, r), (plan::Part{r, 12}));
    EXPECT_EQ(random_stream(p, r), r / 6);  // what is behind the head is the same on all of a grid
  }
  EXPECT_EQ(parts_of_output(p, 0), 6);
  EXPECT_EQ(parts_of_output(p, 2), 1);  // the head's is whole
  EXPECT_EQ(plan::place_axes(plan_of({spatial(1, 2)}).mesh), (std::vector<std::string>{"width"}));
}

analysis::StepSizes sizes() {
  analysis::StepSizes out;
  out.samples = kSamples;
  return out;
}

/// Bytes by sender and receiver, of all exchanges of a kind of action.
std::map<std::pair<Rank, Rank>, std::int64_t> sent(const StepPlan& p, ActionKind kind) {
  std::map<std::pair<Rank, Rank>, std::int64_t> out;
  for (const plan::Action& a : p.actions) {
    if (a.kind != kind) continue;
    for (const Crossing& e : analysis::crossings_of(p, a, sizes())) {
      for (const Crossing::Message& m : e.messages) out[{m.from, m.to}] += m.bytes;
    }
  }
  return out;
}

// (k - 1) / 2 rows or columns, of the width of the part, for each neighbour and convolution.
TEST(SpatialPlan, SendsAHaloToEachNeighbour) {
  constexpr std::int64_t kNumber = 4, kConvolutions = 2;  // bytes of a float
  for (const int kernel : {1, 3, 5}) {
    const std::int64_t halo = (kernel - 1) / 2;
    const std::int64_t of_a_line = halo * kChannels * kSamples * kNumber;
    for (const auto& [rows, columns] : {std::pair(1, 2), {2, 1}, {2, 2}, {1, 4}, {3, 2}}) {
      const StepPlan p = plan_of({spatial(rows, columns)}, kernel);
      std::map<std::pair<Rank, Rank>, std::int64_t> expected, back;
      for (int i = 0; i < rows && halo > 0; ++i) {
        for (int j = 0; j < columns; ++j) {
          const Rank self = i * columns + j;
          // columns have the rows of the halo, too
          const std::int64_t high = kHeight / rows + ((i > 0) + (i + 1 < rows)) * halo;
          for (const int side : {-1, 1}) {
            if (i + side >= 0 && i + side < rows) {
              expected[{self, self + side * columns}] = of_a_line * (kWidth / columns);
            }
            if (j + side >= 0 && j + side < columns)
              expected[{self, self + side}] = of_a_line * high;
          }
        }
      }
      for (auto& [pair, bytes] : expected) {
        back[{pair.second, pair.first}] = bytes;  // the image has no gradient
        bytes *= kConvolutions;
      }
      EXPECT_EQ(sent(p, ActionKind::kForward), expected) << rows << " x " << columns;
      EXPECT_EQ(sent(p, ActionKind::kBackward), back) << rows << " x " << columns;
    }
  }
}

/// Which rank of `parts` has an entry of `extent`.
int owner(std::int64_t entry, std::int64_t extent, int parts) {
  int rank = 0;
  while (plan::share(extent, parts, rank).end <= entry) ++rank;
  return rank;
}

// By going over all edges: a place crosses once to each rank with a place of the output that reads
// it, however many there are.
TEST(LocalConnectivity, SendsEachStateOnceToEachRankThatReadsIt) {
  for (const Window& w : {Window{kChannels, 14, 14, 3, 1, 1}, Window{kChannels, 14, 14, 3, 2, 1},
                          Window{kChannels, 11, 9, 5, 1, 0}, Window{kChannels, 9, 8, 7, 1, 3},
                          Window{kChannels, 12, 12, 2, 3, 0}, Window{kChannels, 12, 6, 1, 1, 0}}) {
    for (const int ranks : {2, 3, 4}) {
      std::set<std::pair<std::int64_t, int>> crossing;  // row of the input, reader
      std::map<std::pair<Rank, Rank>, std::int64_t> expected;
      for (std::int64_t out = 0; out < rows_out(w, w.height); ++out) {
        const int reader = owner(out, rows_out(w, w.height), ranks);
        for (std::int64_t k = 0; k < w.kernel; ++k) {
          const std::int64_t row = out * w.stride - w.padding + k;
          if (row < 0 || row >= w.height || owner(row, w.height, ranks) == reader) continue;
          if (!crossing.insert({row, reader}).second) continue;
          expected[{owner(row, w.height, ranks), reader}] += w.width * kChannels * kSamples * 4;
        }
      }
      plan::ModelShape model = network(1);
      for (plan::SegmentShape& s : model.segments) {
        s.parameters[0].split = {.units = 8};
        s.windows.clear();
        s.norms.clear();
      }
      model.segments[1].split_windows = {w};
      model.segments[2].sums.forward = {10};
      model.segments[2].spatial_all_reduce = 0;
      const StepPlan p = compose(one_device(model), tensor_parallel(ranks)).take_or_throw();
      EXPECT_EQ(*plan::parse_step_plan(to_text(p)), p);
      EXPECT_EQ(sent(p, ActionKind::kForward), expected);
      std::map<std::pair<Rank, Rank>, std::int64_t> back;
      for (const auto& [pair, bytes] : expected) back[{pair.second, pair.first}] = bytes;
      EXPECT_EQ(sent(p, ActionKind::kBackward), back);
    }
  }
}

TEST(SpatialPlan, ForwardIsSentAgainWhereItIsRecomputed) {
  const StepPlan p = plan_of({spatial(2, 2), recompute()});
  std::int64_t once = 0, again = 0;
  for (const auto& [pair, bytes] : sent(p, ActionKind::kForward)) once += bytes;
  for (const auto& [pair, bytes] : sent(p, ActionKind::kRecompute)) again += bytes;
  EXPECT_EQ(again, once);
}

TEST(SpatialPlan, WhatLooksAtAllPlacesIsAddedUp) {
  const StepPlan p = plan_of({spatial(2, 2)});
  const auto of = [&](ActionKind kind) {
    std::vector<Collective> out;
    for (std::size_t i = 0; i < p.actions.size(); ++i) {
      if (p.actions[i].kind != kind) continue;
      for (const Collective& c : analysis::collectives_of(p, i, sizes())) out.push_back(c);
    }
    return out;
  };
  const std::vector<std::string> grid = {"height", "width"};
  const Collective moments{.goal = GoalKind::kAllGather,
                           .elements = 4 * (1 + 2 * kChannels),
                           .dtype = DType::kFloat64,
                           .axes = grid,
                           .algorithm = {}};
  const Collective sums{.goal = GoalKind::kAllReduce,
                        .elements = 2 * kChannels,
                        .dtype = DType::kFloat64,
                        .axes = grid,
                        .algorithm = {}};
  const Collective head{.goal = GoalKind::kAllReduce,
                        .elements = kChannels * kSamples,
                        .dtype = DType::kFloat32,
                        .axes = grid,
                        .algorithm = {}};
  EXPECT_EQ(of(ActionKind::kForward), (std::vector<Collective>{moments, moments, head}));
  EXPECT_EQ(of(ActionKind::kBackward), (std::vector<Collective>{sums, sums}));
}

TEST(SpatialPlan, FrozenFirstLayersSendNoGradients) {
  plan::ModelShape model = network(3);
  model.segments[0].parameters[0].trainable = false;
  const StepPlan p = compose(one_device(model), spatial(1, 2)).take_or_throw();
  EXPECT_TRUE(sent(p, ActionKind::kBackward).empty());
}

TEST(SpatialPlan, SimulationCountsHalos) {
  const StepPlan p = plan_of({spatial(1, 2)});
  analysis::StepTimes times{.compute = [](Rank, const plan::Action&) { return 1.0; },
                            .collective = [](const auto&, const auto&) { return 0.0; }};
  const auto seconds = [&] {
    return analysis::simulate(p, {2}, sizes(), times).take_or_throw().seconds;
  };
  const double without = seconds();
  times.stages_in_host.latency_s = 0.25;  // two halos in forward, one in backward
  EXPECT_NEAR(seconds() - without, 0.75, 1e-9);
}

std::string why(const plan::ModelShape& model, int rows, int columns) {
  const auto plan = compose(one_device(model), spatial(rows, columns));
  return plan.ok() ? "" : plan.status().message();
}

TEST(SpatialPlan, RefusesWhatCannotBeCut) {
  EXPECT_NE(why(network(3), 1, 1).find("give at least 1 x 2"), std::string::npos);
  EXPECT_NE(
      why(without_unused_forms(network(3), {}), 1, 2).find("no segment adds up over the places"),
      std::string::npos);
  const std::string all = why(network(3), 13, 17);  // one message names every map
  for (const char* part : {"'conv0' has a map of 12 x 16 places, fewer than the grid of 13 x 17",
                           "'conv1'", "'head'", "use a smaller grid"}) {
    EXPECT_NE(all.find(part), std::string::npos) << all;
  }
  EXPECT_EQ(why(network(3), 12, 16), "");
}

TEST(LocalConnectivity, NeedsRowsForEachRank) {
  plan::ModelShape net = network(3);
  net.segments[0].parameters[0].split.units = 20;
  net.segments[0].split_windows = {{kChannels, kHeight, kWidth, 3, 2, 1}};
  const Status refused = compose(one_device(net), {tensor_parallel(7)}).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("'conv0' has a map of 6 rows, fewer than 7 ranks"),
            std::string::npos)
      << refused.message();
}

TEST(SpatialPlan, VerifyRefusesOtherForms) {
  const StepPlan good = plan_of({spatial(2, 2)});
  EXPECT_TRUE(analysis::verify(good).ok()) << analysis::verify(good).message();
  for (const auto& [change, message] : std::vector<std::pair<void (*)(StepPlan&), const char*>>{
           {[](StepPlan& p) { p.model.segments[2].spatial_all_reduce = 0; },
            "0 segments have a spatial_all_reduce"},
           {[](StepPlan& p) { p.model.segments[0].spatial_all_reduce = 1; },
            "2 segments have a spatial_all_reduce"},
           {[](StepPlan& p) { p.model.segments[0].windows.clear(); },
            "first segment has no window"},
           {[](StepPlan& p) { p.model.segments[1].windows[0].height = 1; }, "have no part each"},
           {[](StepPlan& p) { p.model.segments[1].windows[0].padding = 3; }, "have no part each"},
           {[](StepPlan& p) { p.parameters[0] = plan::Placement::kShard; },
            "replicated over 'height'"},
           {[](StepPlan& p) { std::swap(p.model.segments[1], p.model.segments[2]); },
            "no ranks have parts of its places"}}) {
    StepPlan p = good;
    change(p);
    const Status status = analysis::verify(p);
    EXPECT_NE(status.message().find(message), std::string::npos)
        << message << " in " << status.message();
  }
}

TEST(SpatialPlan, AStrategySaysWhatItGoesWith) {
  const auto refused = [](const Strategy& strategy, int ranks) {
    const auto plan = plan_for(strategy, network(3), {.ranks_per_host = {ranks}});
    return plan.ok() ? "" : plan.status().message();
  };
  using Kind = Strategy::Kind;
  EXPECT_EQ(refused({.spatial = {2, 2}}, 8), "");
  EXPECT_NE(refused({.spatial = {2, 2}}, 6).find("spatial 2 x 2"), std::string::npos);
  for (const Strategy& s : {Strategy{.spatial = {2}},
                            {.spatial = {1, 1}},
                            {.spatial = {0, 2}},
                            {.spatial = {2, 2, 2}}}) {
    EXPECT_NE(refused(s, 4).find("write e.g. spatial=2,2"), std::string::npos);
  }
  for (const Strategy& s : {Strategy{.kind = Kind::kFsdp, .spatial = {1, 2}},
                            {.kind = Kind::kParameterServer, .spatial = {1, 2}},
                            {.pipeline = 2, .spatial = {1, 2}},
                            {.tensor = 2, .spatial = {1, 2}}}) {
    EXPECT_NE(refused(s, 4).find("spatial goes with 'ddp'"), std::string::npos);
  }
}

}  // namespace
}  // namespace stormo::parallel
