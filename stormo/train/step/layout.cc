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
using plan::ActionRow;
using plan::bad;
using plan::Change;
using plan::Placement;
using plan::StepPlan;
using plan::Value;

constexpr Change kAveraged{Value::kGradients, Placement::kPartial, Placement::kReplicate};
constexpr Change kScattered{Value::kGradients, Placement::kPartial, Placement::kShard};
constexpr Change kPublished{Value::kGradients, Placement::kPartial, Placement::kShared};

/// By which gradients are added up where each rank has all of them.
Change reduction_of(Layout layout, const MadeFor& made) {
  const bool one_host = made.groups->world().cross_size() == 1;
  return layout == Layout::kHostShared && one_host ? kPublished : kAveraged;
}

const char* word_of(const Change& reduction) {
  return reduction == kPublished ? "share_gradients" : "all_reduce";
}

/// Whether the store of a layout does this with parameters and gradients.
bool takes(const ActionRow& row, Layout layout, const MadeFor& made) {
  const bool sums_weights = row.makes.has(Value::kWeights);
  const bool in_worker =
      worker_part(made.plan.mesh, 0).parts > 1 && (sums_weights || row.is(kAveraged));
  switch (layout) {
    case Layout::kReplicated: return sums_weights || row.is(kAveraged);
    case Layout::kHostShared:
      return sums_weights || row.is(reduction_of(layout, made)) ||
             row.places(Value::kParameters, Placement::kShared);
    case Layout::kSharded:
      return row.scope == plan::Scope::kRanks && !row.barrier &&
             !row.takes_from(Placement::kDiverged);
    case Layout::kAveraged:
      return row.outer_updates() || row.mixes() || in_worker || row.averages_slot ||
             (row.scope == plan::Scope::kRanks && row.takes_from(Placement::kDiverged) &&
              !row.of_population());
    case Layout::kPopulation: return row.of_population();
    case Layout::kElastic: return row.places(Value::kParameters, Placement::kRemote);
    case Layout::kServed:
      return row.takes_from(Placement::kRemote) || in_worker ||
             row.places(Value::kGradients, Placement::kRemote);
    case Layout::kServerAveraged: return row.takes_from(Placement::kRemote) || row.averages();
  }
  return false;
}

/// The refusal of an action that it does not take.
std::string what_it_takes(Layout layout, const MadeFor& made) {
  switch (layout) {
    case Layout::kReplicated: return "replicas only average gradients (all_reduce)";
    case Layout::kHostShared: {
      return std::string("one copy per host takes ") + word_of(reduction_of(layout, made)) +
             " and share_parameters";
    }
    case Layout::kSharded: return "shards are no shared copy";
    case Layout::kAveraged:
      return "ranks with parameters of their own only average, mix and "
             "outer_update them, average their state, and track their gradients";
    case Layout::kPopulation: return "members of a population only send each other models";
    case Layout::kElastic: return "ranks that are drawn to a centre only exchange with it";
    case Layout::kServed: return "servers take pull and push";
    case Layout::kServerAveraged: return "servers that average take pull and average";
  }
  return {};
}

/// Whether it moves or frees parameters or gradients between ranks with the same part of the model.
bool moves(const ActionRow& row) {
  const bool of_parameters =
      row.range == plan::RangeOf::kParameters && !row.makes.has(Value::kUpdated);
  return (of_parameters && row.scope != plan::Scope::kReplica) || row.makes.has(Value::kWeights) ||
         row.makes.has(Value::kUnused);
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
    if (!makes(a, Value::kUpdated) || a.axes == parallel::owner_axes(plan)) continue;
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
  if (layout == Layout::kHostShared && at_rest(plan, "host") != Placement::kShared) {
    return bad("there is one copy per host: state parameters shared over host");
  }
  if (layout == Layout::kSharded && at_rest(plan, parallel::kShardAxis) != Placement::kShard) {
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

/// Whether means with neighbours are on their way when an update begins.
bool mixes_ahead(const StepPlan& plan) {
  return std::ranges::any_of(
      plan.actions, [](const Action& a) { return row_of(a.kind).mixes() && a.asynchronous; });
}

/// Whether averages are beside the parameters until their outer updates.
bool streams_averages(const StepPlan& plan) {
  return std::ranges::any_of(plan.actions, [](const Action& a) {
    return row_of(a.kind).averages() && (a.asynchronous || a.codec != Codec::kNone);
  });
}
bool is_of_one_average(const StepPlan& plan, const Action& update) {
  return std::ranges::any_of(plan.actions, [&](const Action& a) {
    return row_of(a.kind).averages() && a.range == update.range;
  });
}

constexpr const char* kInWorker = "the ranks of a worker average when backward is over";

/// Why a layout without shards cannot do an action that it takes; empty: it can.
std::string why_not(const StepPlan& plan, const Action& a, Layout layout, const MadeFor& made) {
  const ActionRow& row = row_of(a.kind);
  const bool all = a.range == all_parameters(plan.model);
  const bool averages = row.is(kAveraged), sums_weights = row.makes.has(Value::kWeights);
  const bool updates = row.makes.has(Value::kUpdated);
  const auto unless = [](bool fits, const char* why) { return std::string(fits ? "" : why); };
  switch (layout) {
    case Layout::kReplicated:
      return unless(!averages || a.axes == first_reduction(plan)->axes,
                    "replicas average all gradients over the same axes, together");
    case Layout::kHostShared:
      if (averages) {
        return unless(a.axes.size() == plan.mesh.axes.size(),
                      "one copy per host averages gradients over all ranks at once");
      }
      return unless(all || sums_weights, "one copy per host is updated as a whole");
    case Layout::kAveraged: {
      if (averages || sums_weights) return unless(!a.asynchronous, kInWorker);
      if (row.outer_updates()) {
        return unless(!streams_averages(plan) || is_of_one_average(plan, a),
                      "averages that travel beside the parameters are taken one by one");
      }
      const bool of_some = updates ? !mixes_ahead(plan) : row.averages() && !row.averages_state;
      return unless(of_some || trained(plan, a.range) == trained(plan, all_parameters(plan.model)),
                    updates ? "the update takes the means of all parameters at once"
                            : "all parameters are averaged together");
    }
    case Layout::kPopulation: return unless(updates || all, "members send whole models");
    case Layout::kElastic:
      return unless(updates || all, "all parameters exchange with the centre at once");
    case Layout::kServed:
      if (updates) return unless(all, "a worker updates all of its copy at once");
      if (averages || sums_weights) return unless(!a.asynchronous, kInWorker);
      if (a.asynchronous && made.worker_copies) {
        return "a worker with copies of its own exchanges at once";
      }
      return unless(a.asynchronous || all,
                    "servers give and take all parameters at once, or asynchronously");
    case Layout::kServerAveraged:
      return unless(updates || (all && !a.asynchronous),
                    "servers average all parameters together, and workers wait for that");
    case Layout::kSharded: break;
  }
  return {};
}

/// Each slot of the optimizer has an average of its own, or none has: what a checkpoint has is
/// equal.
Status check_slots(const StepPlan& plan, const MadeFor& made) {
  if (!averages_slots(plan)) return {};
  const std::size_t all = trained(plan, all_parameters(plan.model));
  std::size_t known = 0, others = 0;
  for (const Action& a : plan.actions) {
    if (!row_of(a.kind).averages_slot) continue;
    const bool fits =
        trained(plan, a.range) == all && static_cast<std::size_t>(a.slot) < made.slots;
    ++(fits ? known : others);
  }
  if (known == made.slots && others == 0) return {};
  return bad("the optimizer has " + std::to_string(made.slots) +
             " slot(s): average each of them, of all parameters, or none");
}

/// That each gradient that the store holds is reduced, which verify() asks of several ranks only.
Status check_all_reduced(const StepPlan& plan, Layout layout, const MadeFor& made) {
  const Change reduction = reduction_of(layout, made);
  std::size_t reduced = 0;
  bool released = false;
  for (const Action& a : plan.actions) {
    if (row_of(a.kind).is(reduction)) reduced += trained(plan, a.range);
    released = released || places(a, Value::kParameters, Placement::kShared);
  }
  const std::size_t all = trained(plan, all_parameters(plan.model));
  if (layout == Layout::kHostShared && (reduced != all || !released)) {
    return bad(std::string("one copy per host takes ") + word_of(reduction) +
               " of every gradient once, and share_parameters");
  }
  if (layout == Layout::kReplicated && first_reduction(plan) != nullptr && reduced != all) {
    return bad("replicas average each gradient once; the plan reduces " + std::to_string(reduced) +
               " of " + std::to_string(all));
  }
  return {};
}

/// Why shards cannot do an action of one of their units; empty: they can.
std::string why_not(const StepPlan& plan, const Action& a, const StepPlan& made, bool in_parts) {
  const ActionRow& row = row_of(a.kind);
  std::vector<std::string> over = {parallel::kShardAxis};
  if (row.is(kAveraged)) {
    over = data_axes(plan.mesh);
    std::erase(over, parallel::kShardAxis);
  }
  if (row.reduces && a.codec != codec_of_parts(made, a.range)) {
    return "the shards were made for gradients in another codec";
  }
  if (row.change && a.axes != over) return "is not what shards do over " + a.axes.front();
  if (row.places(Value::kParameters, Placement::kShard) && sharding_stage(made) < 3) {
    return "whole parameters stay before stage 3";
  }
  if (row.is(kAveraged) && !in_parts) return "shards are reduced to parts first";
  return {};
}

Status check_shards(const StepPlan& plan, const MadeFor& made) {
  std::vector<plan::Unit> units = plan::units_of(made.plan.model);
  std::erase_if(units, [](const plan::Unit& unit) { return unit.elsewhere; });
  std::vector<plan::Range> reduced;
  bool updated = false;
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& a = plan.actions[i];
    const ActionRow& row = row_of(a.kind);
    const auto cannot = [&](const std::string& why) { return bad(describe(plan, i) + ": " + why); };
    if (row.makes.has(Value::kUpdated) && a.range != all_parameters(plan.model)) {
      return cannot("shards are updated all at once");
    }
    updated = updated || row.makes.has(Value::kUpdated);
    if (row.needs.has(Value::kTerms) && !updated && sharding_stage(made.plan) == 1) {
      return cannot("in stage 1 the part that is updated lies among the terms");
    }
    if (row.makes.has(Value::kWeights) && a.asynchronous) {
      return cannot("shards scale their gradients by the sum of weights at once");
    }
    if (!moves(row) || row.range != plan::RangeOf::kParameters) continue;
    if (std::ranges::count(units, a.range, &plan::Unit::parameters) == 0) {
      return cannot("shards are moved segment by segment");
    }
    const bool in_parts = std::ranges::count(reduced, a.range) > 0;
    const std::string why = why_not(plan, a, made.plan, in_parts);
    if (!why.empty()) return cannot(why);
    if (row.is(kScattered)) reduced.push_back(a.range);
  }
  for (const plan::Unit& unit : units) {
    if (!unit.trains || std::ranges::count(reduced, unit.parameters) > 0) continue;
    const auto segment = static_cast<std::size_t>(unit.segment);
    return bad("no reduce_scatter of the parameters of segment " +
               plan.model.segments[segment].name);
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
  if (is_population(plan)) return Layout::kPopulation;
  if (is_diverged(plan)) return Layout::kAveraged;
  return whole && plan.mesh.find("host") >= 0 ? Layout::kHostShared : Layout::kReplicated;
}

Status check_layout(const plan::StepPlan& plan, const ParameterStore& store) {
  if (!store.made_for()) {
    const bool is_alone = plan.mesh.size() == 1 && !is_remote(plan);
    return is_alone ? Status()
                    : bad("the store was made for one rank without servers; use make_store()");
  }
  const MadeFor& made = *store.made_for();
  const Layout layout = layout_of(made.plan);
  STORMO_RETURN_IF_ERROR(check_state(plan, layout, made));
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& a = plan.actions[i];
    const bool updates = makes(a, Value::kUpdated);
    if (!moves(row_of(a.kind)) && !updates) continue;
    const std::string why = updates || takes(row_of(a.kind), layout, made)
                                ? why_not(plan, a, layout, made)
                                : what_it_takes(layout, made);
    if (!why.empty()) return bad(describe(plan, i) + ": " + why);
    const bool needs_group = layout == Layout::kReplicated || layout == Layout::kAveraged ||
                             layout == Layout::kPopulation;
    if (needs_group && !updates && !a.axes.empty()) {
      STORMO_RETURN_IF_ERROR(made.groups->over(a.axes).status());
    }
  }
  if (layout == Layout::kSharded) return check_shards(plan, made);
  STORMO_RETURN_IF_ERROR(check_slots(plan, made));
  return check_all_reduced(plan, layout, made);
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
