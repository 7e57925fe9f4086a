// Every action of every strategy does something: without it, twice, or after its neighbour, the
// plan does not verify, or it is another order of the same step. Orders that verify are executed in
// tests/unit/train/plan_mutants_test.cc.
#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/by_segment.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/computation/trust_ratios.h>
#include <stormo/parallel/inside_layers/context_parallel.h>
#include <stormo/parallel/inside_layers/sequence_parallel.h>
#include <stormo/parallel/inside_layers/spatial.h>
#include <stormo/parallel/inside_layers/tensor_parallel.h>
#include <stormo/parallel/inside_layers/vertical.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/choose.h>
#include <stormo/parallel/replicas/local_averages.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/replicas/mix.h>
#include <stormo/parallel/replicas/outer_update.h>
#include <stormo/parallel/replicas/parameter_averaging.h>
#include <stormo/parallel/replicas/population.h>
#include <stormo/parallel/replicas/state_periods.h>
#include <stormo/parallel/replicas/streaming.h>
#include <stormo/parallel/servers/parameter_server.h>
#include <stormo/parallel/sharding/sharded.h>

#include "tests/sanitized.h"
#include "tests/unit/parallel/swaps.h"
#include "tests/ways.h"

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::StepPlan;

plan::ModelShape model() {
  plan::ModelShape out;
  for (int i = 0; i < 3; ++i) {
    const std::string name = "layer" + std::to_string(i);
    out.segments.push_back({.name = name,
                            .parameters = {{name + ".weight", 100}, {name + ".bias", 10}},
                            .flops_per_sample = 200,
                            .borrowed = {},
                            .heads = 6,
                            .positions = 12,
                            .keys = 24,
                            .windows = {{.channels = 1, .height = 8, .width = 8, .kernel = 3}},
                            .spatial_all_reduce = i == 2 ? 4 : 0});
    out.segments.back().parameters[0].split = {.units = 4};
    if (i < 2) out.segments.back().sums.forward = {8};
    if (i > 0) out.segments.back().sums.backward = {8};
  }
  out.segments[2].splits_output = true;
  out.segments[2].borrowed = {0};
  return out;
}

/// Of which ranks can have columns.
plan::ModelShape model_by_columns() {
  plan::ModelShape out = without_unused_forms(model(), {});
  out.segments[0].parameters[0].split = {.dim = 1, .units = 4};
  out.segments[0].sums.forward = {8};
  out.segments[2].sums.loss = {3};
  return out;
}

/// What makes the replicas, or workers, of each way on some hosts.
std::vector<std::vector<Pass>> whole_models() {
  std::vector<std::vector<Pass>> out;
  for (const std::vector<int>& hosts : {std::vector{1}, {2}, {3}, {4}, {2, 2}}) {
    const Workers workers{.ranks_per_host = hosts};
    for (const stormo::test::Way& way : stormo::test::ways_on(hosts)) {
      const bool served = has_servers(way.strategy.kind);
      for (const bool early : {false, true}) {
        const StepOptions step{.prefetch = early ? 1 : 0, .overlap_exchange = early};
        const Job job{workers, step};
        const int copies = job.ranks() / (served ? way.strategy.worker_ranks : 1);
        if (copies > 1 || served)
          way.row().distribute(out.emplace_back(), way.strategy, job, copies);
      }
    }
  }
  return out;
}

std::vector<StepPlan> strategies() {
  std::vector<std::vector<Pass>> ways = whole_models();
  ways.insert(
      ways.end(),
      {{},
       {pipeline({.schedule = gpipe()}), parameter_server(2)},
       {pipeline({.schedule = gpipe()}), tensor_parallel(2), parameter_server(2)},
       {tensor_parallel(2), parameter_server(3), sequence_parallel()},
       {parameter_server(3, {.fetch = 8, .push = 8, .averages = true})},
       {parameter_server(2, {.fetch = 4, .push = 2}, 3)},
       {parameter_averaging(4, 8), mix()},
       {parameter_averaging(4, 8, /*state=*/false), gossip({.topology = "one_peer_exponential"})},
       {pipeline({.schedule = gpipe()}), tensor_parallel(2),
        parameter_averaging(4, 8, /*state=*/false), gossip({.topology = "torus"})},
       {parameter_averaging(4, 8), tournament("one_peer_exponential")},
       {parameter_averaging(4, 8), codistillation("complete")},
       {parameter_averaging(3, 8, /*state=*/false)},
       {parameter_averaging(2, 4), outer_update()},
       {parameter_averaging(3, 4), state_periods({8, 12})},
       {parameter_averaging(4, 8), local_averages(2, 2)},
       {parameter_averaging(6, 8, /*state=*/false), local_averages(3, 1)},
       {pipeline({.schedule = gpipe()}), tensor_parallel(2), parameter_averaging(2, 4),
        state_periods({4}), outer_update()},
       {parameter_averaging(2, 8, /*state=*/false), outer_update(), streaming({.fragments = 3})},
       {parameter_averaging(2, 8, /*state=*/false), outer_update(),
        streaming({.fragments = 2, .delay = 3})},
       {pipeline({.schedule = gpipe()}), tensor_parallel(2),
        parameter_averaging(2, 8, /*state=*/false), outer_update(),
        streaming({.fragments = 4, .delay = 1})},
       {pipeline({.schedule = gpipe()}), tensor_parallel(2),
        parameter_averaging(2, 4, /*state=*/false), outer_update()},
       {pipeline({.schedule = gpipe()}), tensor_parallel(2), parameter_averaging(2, 4), mix()},
       {tensor_parallel(2)},
       {tensor_parallel(2), parameter_averaging(3, 8), sequence_parallel()},
       {pipeline({.schedule = gpipe()}), tensor_parallel(2), parameter_averaging(2, 4)},
       {tensor_parallel(2), mirrored(2)},
       {tensor_parallel(2), sequence_parallel()},
       {tensor_parallel(2), mirrored(2), sequence_parallel()},
       {tensor_parallel(2), mirrored(2), trust_ratios()},
       {context_parallel(2, plan::AttentionForm::kRing)},
       {context_parallel(3, plan::AttentionForm::kHeads), tensor_parallel(2), mirrored(2)},
       {spatial(2, 2)},
       {spatial(1, 4), mirrored(2)}});
  for (const int stage : {1, 2, 3}) {
    for (const int prefetch : {0, 1}) {
      const Sharding how{.stage = stage, .ranks = 2, .prefetch = prefetch};
      ways.push_back({mirrored(2), sharded(how)});
      ways.push_back(
          {context_parallel(2, plan::AttentionForm::kRing), tensor_parallel(2), sharded(how)});
      ways.push_back(ways.back());
      ways.back().insert(ways.back().end(), {sequence_parallel(), trust_ratios()});
      ways.push_back({pipeline({.schedule = gpipe()}), sharded(how)});
      ways.push_back({pipeline({.schedule = gpipe()}),
                      context_parallel(2, plan::AttentionForm::kRing), tensor_parallel(2),
                      mirrored(2), sharded(how)});
    }
  }
  std::vector<StepPlan> out;
  std::set<std::string> known;
  const auto add = [&](const StepPlan& made) {
    if (known.insert(to_text(made)).second) out.push_back(made);
  };
  for (const auto& way : ways) {
    for (const int n : {1, 2}) {
      for (const bool scales : {false, true}) {
        std::vector<Pass> passes = {micro_batches(n)};
        if (scales) passes.insert(passes.end(), {scale_loss(), clip_gradients()});
        passes.insert(passes.end(), way.begin(), way.end());
        if (scales) passes.push_back(recompute());
        add(compose(one_device(model()), passes).take_or_throw());
      }
    }
  }
  const VerticalOptions columns{.ranks = 3, .labels = 1, .columns = {1, 2, 1}};
  for (const int n : {1, 2}) {
    const std::vector<Pass> plain = {micro_batches(n), vertical(columns)};
    const std::vector<Pass> scales = {micro_batches(n), scale_loss(), clip_gradients(),
                                      vertical(columns), recompute()};
    for (const auto& passes : {plain, scales}) {
      out.push_back(compose(one_device(model_by_columns()), passes).take_or_throw());
    }
  }
  // gradients that are tracked are neither scaled nor clipped
  const Pass tracking = gossip({.topology = "ring", .tracks_gradients = true});
  out.push_back(
      compose(one_device(model()), parameter_averaging(3, 8, false), tracking).take_or_throw());
  out.push_back(compose(one_device(model()), micro_batches(2), pipeline({.schedule = gpipe()}),
                        tensor_parallel(2), parameter_averaging(2, 4, false), tracking)
                    .take_or_throw());
  for (const int depth : {0, 1, 4}) {
    out.push_back(compose(one_device(model()), choose(depth, 1)).take_or_throw());
    out.push_back(
        compose(one_device(model()), by_segment(), mirrored(3), choose(depth, 40)).take_or_throw());
  }
  return out;
}

TEST(Mutation, NoActionCanBeLeftOutOrDoneTwice) {
  int tried = 0, refused = 0;
  constexpr std::size_t kEvery = kSanitized ? 8 : 1;
  for (const StepPlan& p : strategies()) {
    for (std::size_t i = 0; i < p.actions.size(); i += kEvery) {
      StepPlan without = p, twice = p;
      without.actions.erase(without.actions.begin() + static_cast<std::ptrdiff_t>(i));
      twice.actions.insert(twice.actions.begin() + static_cast<std::ptrdiff_t>(i), p.actions[i]);
      const bool sees_loss = !analysis::verify(without).ok();
      const bool sees_second = !analysis::verify(twice).ok();
      // without its recompute a forward keeps its activations: another plan
      const bool recomputes = p.actions[i].kind == ActionKind::kRecompute;
      // ranks may meet their neighbours never, once or twice in a step: other plans
      const bool mixes = row_of(p.actions[i].kind).mixes();
      const bool ahead = p.actions[i].asynchronous || row_of(p.actions[i].kind).tracks();
      // without its outer update an average of all is what replicas go on with
      const bool outer = p.actions[i].kind == ActionKind::kOuterUpdate && !is_staggered(p);
      // without averages of its own a slot stays with each rank, and hosts average with all others
      const bool other =
          p.actions[i].kind == ActionKind::kAverageState || averages_some(p, p.actions[i]);
      EXPECT_TRUE(sees_loss || recomputes || mixes || outer || other)
          << p.strategy << " without " << describe(p, i);
      EXPECT_TRUE(sees_second || (mixes && !ahead)) << p.strategy << " twice " << describe(p, i);
      tried += 2;
      refused += (sees_loss ? 1 : 0) + (sees_second ? 1 : 0);
    }
  }
  std::printf("%d mutants of %zu plans: %d refused, %d are other plans\n", tried,
              strategies().size(), refused, tried - refused);
  EXPECT_GE(tried, 20454 / static_cast<int>(kEvery));
}

TEST(Mutation, NeighboursChangePlacesOnlyWhereNeitherChangesWhatTheOtherUses) {
  test::expect_every_swap_decided(strategies());
}

}  // namespace
}  // namespace stormo::parallel
