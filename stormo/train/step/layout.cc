#include <stormo/train/step/layout.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <stormo/parallel/computation/trust_ratios.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/plan/bad_plan.h>
#include <stormo/plan/flat_buffer.h>
#include <stormo/plan/project.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/reduction/gradient_reducer.h>
#include <stormo/train/store/sharded_store.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::bad;
using plan::StepPlan;

/// What the store of a layout does with parameters and gradients, and what it says to the rest.
struct Takes {
  std::vector<ActionKind> kinds;
  std::string otherwise;
};

/// By which gradients are added up where each rank has all of them.
ActionKind reduction_of(Layout layout, const MadeFor& made) {
  const bool one_host = made.groups->world().cross_size() == 1;
  return layout == Layout::kHostShared && one_host ? ActionKind::kShareGradients
                                                   : ActionKind::kAllReduce;
}

Takes takes_of(Layout layout, const MadeFor& made) {
  using enum ActionKind;
  const ActionKind reduction = reduction_of(layout, made);
  switch (layout) {
    case Layout::kReplicated:
      return {{kSumWeights, kAllReduce}, "replicas only average gradients (all_reduce)"};
    case Layout::kHostShared:
      return {
          {kSumWeights, reduction, kShareParameters},
          "one copy per host takes " + std::string(to_string(reduction)) + " and share_parameters"};
    case Layout::kSharded:
      return {{kSumWeights, kFindUnused, kAllGather, kReshard, kReduceScatter, kReleaseGradients,
               kAllReduce},
              "shards are no shared copy"};
    case Layout::kAveraged:
      return {{kAverage, kMix}, "ranks with parameters of their own only average and mix them"};
    case Layout::kElastic:
      return {{kElasticAverage}, "ranks that are drawn to a centre only exchange with it"};
    case Layout::kServed: {
      Takes out{{kPull, kPush}, "servers take pull and push"};
      const bool has_ranks = worker_part(made.plan.mesh, 0).parts > 1;
      if (has_ranks) out.kinds.insert(out.kinds.end(), {kSumWeights, kAllReduce});
      return out;
    }
    case Layout::kServerAveraged:
      return {{kPull, kAverage}, "servers that average take pull and average"};
  }
  return {};
}

/// Whether it moves or frees parameters or gradients between ranks with the same part of the model.
bool moves(ActionKind kind) {
  using enum ActionKind;
  const bool of_replica = row_of(kind).scope == plan::Scope::kReplica;
  const bool of_parameters = row_of(kind).range == plan::RangeOf::kParameters && kind != kUpdate;
  return (of_parameters && !of_replica) || kind == kSumWeights || kind == kFindUnused;
}

/// "mesh dp=2 shard=4"
std::string text_of(const plan::Mesh& mesh) {
  std::string out = "mesh";
  for (const plan::Axis& axis : mesh.axes) out += " " + axis.name + "=" + std::to_string(axis.size);
  return mesh.axes.empty() ? "a single one" : out;
}

plan::Placement at_rest(const StepPlan& plan, const char* axis) {
  return plan.parameters[static_cast<std::size_t>(plan.mesh.find(axis))];
}

/// The norms that the rule of the optimizer needs are added up as whole_norms() does.
Status check_norms(const StepPlan& plan, OptimizerOptions::Kind rule) {
  if (!optim::needs_norms(rule)) return {};
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& a = plan.actions[i];
    if (a.kind != ActionKind::kUpdate || a.axes == parallel::owner_axes(plan)) continue;
    return bad(describe(plan, i) +
               ": lars and lamb add norms up over all ranks that have parts of a parameter; apply "
               "trust_ratios()");
  }
  return {};
}

/// That the plan begins with what the store holds.
Status check_state(const StepPlan& plan, Layout layout, const MadeFor& made) {
  if (plan.mesh != made.plan.mesh) {
    return bad("the plan is for other ranks: " + text_of(plan.mesh) + ", not " +
               text_of(made.plan.mesh) + "; compose it for these (parallel::plan_for)");
  }
  if (plan.sequence_parallel != made.plan.sequence_parallel) {
    return bad(plan.sequence_parallel ? "the plan has parts of positions, the store has none"
                                      : "the store has parts of positions, the plan has none");
  }
  if (layout == Layout::kHostShared && at_rest(plan, "host") != plan::Placement::kShared) {
    return bad("there is one copy per host: state parameters shared over host");
  }
  if (layout == Layout::kSharded &&
      at_rest(plan, parallel::kShardAxis) != plan::Placement::kShard) {
    return bad("shards lie in parts between steps: state parameters over shard");
  }
  if (layout == Layout::kServed && has_worker_copies(plan) != made.worker_copies) {
    return bad("the plan is for another exchange with servers than the options of the run");
  }
  const bool has_parts = layout == Layout::kSharded || !model_axes(plan.mesh).empty();
  return has_parts ? check_norms(plan, made.rule) : Status();
}

std::size_t trained(const StepPlan& plan, plan::Range range) {
  return size_of(trainable_in(plan.model, range));
}

/// Why a layout without shards cannot do an action that it takes; empty: it can.
std::string why_not(const StepPlan& plan, const Action& a, Layout layout, const MadeFor& made) {
  using enum ActionKind;
  const bool all = a.range == all_parameters(plan.model);
  const bool of_gradients = a.kind == kSumWeights || a.kind == kAllReduce;
  const auto unless = [](bool fits, const char* why) { return std::string(fits ? "" : why); };
  switch (layout) {
    case Layout::kReplicated:
      return unless(a.kind != kAllReduce || a.axes == first_reduction(plan)->axes,
                    "replicas average all gradients over the same axes, together");
    case Layout::kHostShared:
      if (a.kind == kAllReduce) {
        return unless(a.axes.size() == plan.mesh.axes.size(),
                      "one copy per host averages gradients over all ranks at once");
      }
      return unless(all || a.kind == kSumWeights, "one copy per host is updated as a whole");
    case Layout::kAveraged:
      return unless(
          a.kind == kUpdate || trained(plan, a.range) == trained(plan, all_parameters(plan.model)),
          "all parameters are averaged together");
    case Layout::kElastic:
      return unless(a.kind == kUpdate || all, "all parameters exchange with the centre at once");
    case Layout::kServed:
      if (a.kind == kUpdate) return unless(all, "a worker updates all of its copy at once");
      if (of_gradients) {
        return unless(!a.asynchronous, "the ranks of a worker average when backward is over");
      }
      if (a.asynchronous && made.worker_copies) {
        return "a worker with copies of its own exchanges at once";
      }
      return unless(a.asynchronous || all,
                    "servers give and take all parameters at once, or asynchronously");
    case Layout::kServerAveraged:
      return unless(a.kind == kUpdate || (all && !a.asynchronous),
                    "servers average all parameters together, and workers wait for that");
    case Layout::kSharded: break;
  }
  return {};
}

/// That each gradient that the store holds is reduced, which verify() asks of several ranks only.
Status check_all_reduced(const StepPlan& plan, Layout layout, ActionKind reduction) {
  std::size_t reduced = 0;
  bool released = false;
  for (const Action& a : plan.actions) {
    if (a.kind == reduction) reduced += trained(plan, a.range);
    released = released || a.kind == ActionKind::kShareParameters;
  }
  const std::size_t all = trained(plan, all_parameters(plan.model));
  if (layout == Layout::kHostShared && (reduced != all || !released)) {
    return bad("one copy per host takes " + std::string(to_string(reduction)) +
               " of every gradient once, and share_parameters");
  }
  if (layout == Layout::kReplicated && first_reduction(plan) != nullptr && reduced != all) {
    return bad("replicas average each gradient once; the plan reduces " + std::to_string(reduced) +
               " of " + std::to_string(all));
  }
  return {};
}

/// What a rank moves at once: see plan::units_of().
struct Unit {
  plan::Range parameters;
  std::string segment;
  bool trains = false;
  plan::Codec codec = plan::Codec::kNone;  // of its gradients
  bool reduced = false;
};

std::vector<Unit> units_of_rank(const StepPlan& made) {
  std::vector<Unit> out;
  const auto shapes = flatten(made.model);
  const auto shape = [&](int i) { return shapes[static_cast<std::size_t>(i)]; };
  const std::vector<std::vector<plan::Range>> units = plan::units_of(made.model);
  for (std::size_t s = 0; s < units.size(); ++s) {
    for (const plan::Range own : units[s]) {
      if (own.size() > 0 && shape(own.first)->elsewhere) continue;
      Unit& unit =
          out.emplace_back(Unit{.parameters = own, .segment = made.model.segments[s].name});
      for (int i = own.first; i <= own.last; ++i) unit.trains = unit.trains || shape(i)->trainable;
      unit.codec = codec_of_parts(made, own);
    }
  }
  return out;
}

/// Why shards cannot do an action of one of their units; empty: they can.
std::string why_not(const StepPlan& plan, const Action& a, const Unit& unit, int stage) {
  using enum ActionKind;
  std::vector<std::string> replicas = data_axes(plan.mesh);
  std::erase(replicas, parallel::kShardAxis);
  const bool fits = a.kind == kAllReduce ? a.axes == replicas
                                         : a.axes == std::vector<std::string>{parallel::kShardAxis};
  if (row_of(a.kind).reduces && a.codec != unit.codec) {
    return "the shards were made for gradients in another codec";
  }
  if (a.kind != kReleaseGradients && !fits) return "is not what shards do over " + a.axes.front();
  if (a.kind == kReshard && stage < 3) return "whole parameters stay before stage 3";
  if (a.kind == kAllReduce && !unit.reduced) return "shards are reduced to parts first";
  return {};
}

Status check_shards(const StepPlan& plan, const MadeFor& made) {
  using enum ActionKind;
  const int stage = sharding_stage(made.plan);
  std::vector<Unit> units = units_of_rank(made.plan);
  bool updated = false;
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& a = plan.actions[i];
    const auto cannot = [&](const std::string& why) { return bad(describe(plan, i) + ": " + why); };
    if (a.kind == kUpdate && a.range != all_parameters(plan.model)) {
      return cannot("shards are updated all at once");
    }
    updated = updated || a.kind == kUpdate;
    if (a.kind == kReleaseGradients && !updated && stage == 1) {
      return cannot("in stage 1 the part that is updated lies among the terms");
    }
    if (a.kind == kSumWeights && a.asynchronous) {
      return cannot("shards scale their gradients by the sum of weights at once");
    }
    if (!moves(a.kind) || row_of(a.kind).range != plan::RangeOf::kParameters) continue;
    const auto unit = std::ranges::find(units, a.range, &Unit::parameters);
    if (unit == units.end()) return cannot("shards are moved segment by segment");
    if (const std::string why = why_not(plan, a, *unit, stage); !why.empty()) return cannot(why);
    unit->reduced = unit->reduced || a.kind == kReduceScatter;
  }
  for (const Unit& unit : units) {
    if (!unit.trains || unit.reduced) continue;
    return bad("no reduce_scatter of the parameters of segment " + unit.segment);
  }
  return {};
}

}  // namespace

Layout layout_of(const plan::StepPlan& plan) {
  const bool whole = model_axes(plan.mesh).empty();
  if (plan.mesh.find(parallel::kShardAxis) >= 0) return Layout::kSharded;
  if (whole && averages_on_servers(plan)) return Layout::kServerAveraged;
  if (is_remote(plan)) return Layout::kServed;
  if (whole && has_centre(plan)) return Layout::kElastic;
  if (is_diverged(plan)) return Layout::kAveraged;
  return whole && plan.mesh.find("host") >= 0 ? Layout::kHostShared : Layout::kReplicated;
}

int sharding_stage(const plan::StepPlan& plan) {
  for (const Action& a : plan.actions) {
    if (a.kind == ActionKind::kReshard) return 3;
  }
  for (const Action& a : plan.actions) {
    if (a.kind == ActionKind::kReleaseGradients) return 2;
    if (a.kind == ActionKind::kUpdate) return 1;
  }
  return 1;
}

Status check_layout(const plan::StepPlan& plan, const ParameterStore& store) {
  if (!store.made_for()) return {};
  const MadeFor& made = *store.made_for();
  const Layout layout = layout_of(made.plan);
  STORMO_RETURN_IF_ERROR(check_state(plan, layout, made));
  const Takes takes = takes_of(layout, made);
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& a = plan.actions[i];
    if (!moves(a.kind) && a.kind != ActionKind::kUpdate) continue;
    const bool takes_it =
        a.kind == ActionKind::kUpdate || std::ranges::count(takes.kinds, a.kind) > 0;
    const std::string why = takes_it ? why_not(plan, a, layout, made) : takes.otherwise;
    if (!why.empty()) return bad(describe(plan, i) + ": " + why);
    const bool needs_group = layout == Layout::kReplicated || layout == Layout::kAveraged;
    if (needs_group && moves(a.kind) && !a.axes.empty()) {
      STORMO_RETURN_IF_ERROR(made.groups->over(a.axes).status());
    }
  }
  if (layout == Layout::kSharded) return check_shards(plan, made);
  return check_all_reduced(plan, layout, reduction_of(layout, made));
}

Status check_device(const plan::StepPlan& plan, torch::Device device) {
  if (device.is_cpu()) return {};
  std::string why;
  if (layout_of(plan) == Layout::kHostShared) {
    why = "one copy per host lies in memory that its ranks map; use parameters = \"replicated\"";
  } else if (is_remote(plan) || has_centre(plan)) {
    why = "servers hold parameters in host memory; use 'ddp', 'fsdp' or 'parameter_averaging'";
  } else if (!model_axes(plan.mesh).empty() || !place_axes(plan.mesh).empty() ||
             plan.mesh.find(plan::kContextAxis) >= 0) {
    why =
        "ranks with parts of a model or of samples send tensors in host memory; use 'ddp', 'fsdp'";
  }
  if (why.empty()) return {};
  return invalid_argument("the parameters are on " + device.str() + ", and " + why +
                          ", or train on the CPU");
}

}  // namespace stormo::train
