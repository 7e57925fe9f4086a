#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/action.h>
#include <stormo/plan/mesh.h>
#include <stormo/plan/model/model_shape.h>

namespace stormo::plan {

/// How ranks that have parts of the positions compute attention (tensor/context.h).
enum class AttentionForm : std::uint8_t {
  kRing,   ///< keys and values pass all ranks in turn
  kHeads,  ///< each rank gets all positions of its share of the heads
};
inline constexpr std::array kAttentionForms = {AttentionForm::kRing, AttentionForm::kHeads};
std::string_view to_string(AttentionForm form);

/// The actions of one training step, in order. Each rank executes those that concern it
/// (project()), but the ones that are not for this step (Action::every). Each lane runs its actions
/// one after the other, as soon as their inputs are available. Strategies are lists of passes,
/// `StepPlan -> Result<StepPlan>`.
///
/// Where actions have a delay, steps overlap: each begins while batches of earlier ones are under
/// way. A rank computes a batch with the parameters that it had when it loaded it (or with the
/// newest, see newest_weights). Before an agree all batches are finished, by actions with a delay
/// alone.
struct StepPlan {
  std::string strategy = "one_device";  ///< names of the passes applied, joined by '+'
  Mesh mesh;
  int micro_batches = 1;  ///< into which the local batch is divided
  /// Shards that the global batch is cut into, however many ranks there are: each micro-batch is
  /// one, and their gradients and losses are added up over one tree (plan/logical_shards.h). 0:
  /// each rank has a share of its own.
  int logical_shards = 0;
  bool scaled_loss = false;  ///< gradients are those of the loss times a scale
  bool clipped = false;      ///< gradients are clipped by their norm
  bool commits = false;      ///< updates stand behind a kCommit
  /// A step trains only the parts of parameters that it chooses. Gradients of batches under way at
  /// the same time are kept apart, and their weights travel with them.
  bool chosen = false;
  AttentionForm attention = AttentionForm::kRing;  ///< with kContextAxis
  /// Outside of what the ranks of kTensorAxis split, each has the activations of its part of the
  /// positions (tensor/split.h); only with this axis.
  bool sequence_parallel = false;
  /// Where steps overlap: each computation uses the newest parameters, so that a backward combines
  /// them with activations that older ones made.
  bool newest_weights = false;
  /// The one rank of kTensorAxis that has the targets: it computes the loss, and sends it with the
  /// gradient of the output to the others. -1: each rank has them.
  int labels = -1;
  ModelShape model;
  /// Placements between steps, by axis of the mesh.
  std::vector<Placement> parameters;  ///< the trainable ones
  std::vector<Placement> frozen;      ///< the others
  std::vector<Placement> optimizer_state;
  std::vector<Action> actions;
  bool operator==(const StepPlan&) const = default;
};

/// Whether the trainable parameters lie on servers: then the ranks are their workers.
bool is_remote(const StepPlan& p);
/// Whether workers of servers train copies of their own between their pulls and pushes.
bool has_worker_copies(const StepPlan& p);
/// Whether servers average what workers train: parameters and the optimizer's state.
bool averages_on_servers(const StepPlan& p);
/// The longest delay of an action; 0: steps do not overlap.
int longest_delay(const StepPlan& p);
/// The actions in the order in which one batch passes them: in that of their delays, then of the
/// plan. An agree counts as having the longest delay.
std::vector<std::size_t> order_of_batch(const StepPlan& p);
/// Whether backwards are in two parts.
bool has_backward_parts(const StepPlan& p);
/// Whether the ranks' parameters differ between steps: then they are averaged now and then, or
/// exchange with a centre.
bool is_diverged(const StepPlan& p);
/// Whether ranks are members of a population, whose models never become equal.
bool is_population(const StepPlan& p);
/// Whether actions for one of every n steps come in different ones.
bool is_staggered(const StepPlan& p);
/// Whether slots of the optimizer's state are averaged by themselves, in some of the steps that
/// average parameters.
bool averages_slots(const StepPlan& p);
/// Whether servers hold a centre with which the ranks exchange.
bool has_centre(const StepPlan& p);
/// Whether the ranks are workers of servers, with parameters or a centre there: then no action
/// makes workers wait for each other.
bool has_servers(const StepPlan& p);

/// Whether codecs have state from one step to the next: what they lost, and what they draw from.
bool keeps_residuals(const StepPlan& p);

/// "all_gather 4-7 over shard async", "average 0-5 over dp every 8", as in the text form.
std::string to_text(const Action& a);
/// The action with its number, and with "block0" or "block0.weight..block1.bias" for the range; for
/// messages.
std::string describe(const StepPlan& p, std::size_t action);

/// Versioned text form, one line per segment, parameter and action; parse_step_plan is the inverse.
/// Comments have the names of the ranges.
std::string to_text(const StepPlan& p);
/// Inverse of to_text; kBadPlan with line and column for anything else. Checks only syntax and
/// numbers; analysis::verify checks that the plan is correct.
Result<StepPlan> parse_step_plan(std::string_view text);
std::uint64_t hash(const StepPlan& p);

}  // namespace stormo::plan
