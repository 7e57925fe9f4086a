#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/types.h>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/comm/codec/encoded_sum.h>
#include <stormo/comm/communicator.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/sharding/flat_parameter.h>
#include <stormo/train/state/safetensors.h>

namespace stormo::train {

/// Throws Error, naming FullyShardedDataParallel, unless `status` is OK.
void throw_if_failed(const Status& status);

/// Types other than the parameters' own, which are what the optimizer updates (float32 masters).
struct ShardPrecision {
  /// Of the parameters that forward and backward see, and of what is gathered: kBFloat16, kHalf.
  std::optional<torch::ScalarType> compute;
  /// Of gradients on their way and until the update; default: the parameters' own.
  std::optional<torch::ScalarType> reduce;
};

struct ShardingOptions {
  int stage = 3;  ///< 1, 2: gradients and optimizer state are sharded; 3: parameters too
  bool reshard_after_forward = true;  ///< stage 3; else units stay whole until their backward
  /// So many units are gathered ahead and reduced behind, while others compute. 0: each transfer
  /// blocks the caller, which is faster where no core is idle and no wire between the ranks.
  int prefetch = 1;
  /// Cut over the ranks of each host only, and average gradients over hosts (HSDP). Hosts have
  /// equal numbers of ranks.
  bool hybrid = false;
  /// Gradients are added in one order: bits depend on the ranks and hosts, not on the sizes of
  /// units or what is fastest for them.
  bool deterministic = false;
  ShardPrecision precision;
};

/// Who shares one copy, and who holds the same part of another copy. All borrowed.
struct ShardingGroups {
  comm::Communicator* world = nullptr;
  comm::Communicator* shards = nullptr;    ///< parameters are cut over these ranks
  comm::Communicator* replicas = nullptr;  ///< null: nobody holds the same part
};

/// The units of a sharded model, those of plan::units_of() that this rank has, and what the actions
/// of a plan mean for them. Knows nothing of modules and hooks.
class ShardedUnits {
 public:
  ShardedUnits(const ShardingGroups& groups, const ShardingOptions& options);

  /// `borrowed`: parameters of earlier units that the unit reads as well; others are left alone.
  /// Returns its index. It may have no parameters of its own.
  int add(std::vector<NamedParameter> parameters, const std::vector<torch::Tensor>& borrowed,
          const ShardPrecision& precision);
  /// A plan counts so many parameters next that are elsewhere, on other stages.
  void skip(int parameters) { parameters_ += parameters; }
  bool has(const torch::Tensor& parameter) const;
  int size() const { return static_cast<int>(units_.size()); }
  /// The unit that owns these parameters, as a plan counts them.
  std::optional<int> find(plan::Range parameters) const;

  /// From the next action on does those of `plan`, this rank's part of it, which has these units.
  /// `states_types`: else units compute or reduce in types of which the plan says nothing. kBadPlan
  /// if a unit has other elements than the plan says.
  Status set_plan(const plan::StepPlan& plan, bool states_types = true);
  bool follows() const { return follows_; }
  /// Does what the action says with the unit of its range; `weight` is what this rank's gradients
  /// count for. An asynchronous one may still be under way: make_readable() and the actions that
  /// follow wait for what they need.
  ///  - all_gather: makes the parameters whole; moves nothing where they are;
  ///  - reshard: drops the whole in stage 3; this rank's part stays;
  ///  - count: adds up the weights, and drops what a pass that ended early has left;
  ///  - reduce_scatter, release_gradients, all_reduce (over the replicas);
  ///  - find_unused: waits for all reductions, finds which parameters have a gradient on any rank,
  ///    and gives the pieces of these their gradients.
  /// kBadPlan for other actions.
  Status perform(const plan::Action& action, double weight);
  /// Of what the unit reads: see FlatParameter::check_views().
  Status check_views(int unit) const;
  /// Waits until all that the unit reads is whole; kBadPlan if it was not gathered.
  Status make_readable(int unit);

  /// Blocks until the parameters of a unit are whole; back to this rank's part.
  Status gather(int unit);
  Status release(int unit);
  Status gather_all();
  Status release_all();
  /// Units that are gathered stay whole.
  void keep_all();
  /// The ranks' parts may have changed; those of frozen parameters too?
  Status make_stale(bool frozen);

  /// See ParameterStore.
  TensorMap residuals() const;
  void keep_residuals(TensorMap kept) { kept_ = std::move(kept); }

  std::vector<FlatParameter*> flats() const;  ///< in the order of units
  const ShardingGroups& groups() const { return groups_; }
  const ShardingOptions& options() const { return options_; }

 private:
  /// A gradient on its way.
  struct Reduction {
    FlatParameter* flat;
    torch::Tensor whole, part;
    comm::Work work;
  };
  struct Unit {
    std::vector<std::unique_ptr<FlatParameter>> flats;
    std::vector<int> uses;   ///< itself, and the units whose parameters it borrows
    plan::Range parameters;  ///< as a plan counts them
    std::vector<comm::Work> gathering;
    std::vector<Reduction> reducing;
  };
  Unit& at(int unit) { return *units_[static_cast<std::size_t>(unit)]; }
  const Unit& at(int unit) const { return *units_[static_cast<std::size_t>(unit)]; }
  Status start_gather(int unit, bool asynchronous);
  Status end_gather(int unit);
  Status count(double weight);
  Status start_reduce(int unit, bool asynchronous);
  Status release_gradients(int unit);
  Status start_average(int unit, bool asynchronous);
  Status find_unused();
  std::span<std::uint8_t> flags_of(const FlatParameter& flat);
  /// That of a reduction in a codec that encodes, with what it keeps from step to step; else null.
  comm::EncodedSum* encoding(const analysis::Collective& what, const FlatParameter& flat,
                             comm::Communicator& ranks);
  /// Does it, or starts it.
  Result<comm::Work> send(plan::GoalKind goal, const FlatParameter& flat, comm::Communicator& ranks,
                          const comm::Buffer& in, const comm::Buffer& out, bool asynchronous);

  ShardingGroups groups_;
  ShardingOptions options_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::map<const c10::TensorImpl*, int> owner_;
  std::map<const FlatParameter*, std::size_t> first_flag_;
  /// What is sent of a flat parameter, by the goal of the collective.
  std::map<std::pair<plan::GoalKind, const FlatParameter*>, analysis::Collective> sent_;
  std::optional<analysis::Collective> weights_sent_, flags_sent_;
  bool follows_ = false;
  std::map<std::string, std::unique_ptr<comm::EncodedSum>> encodings_;  // by what they are of
  TensorMap kept_;  // residuals for those that are not made yet

  int parameters_ = 0;  ///< of all units, and those between them that are elsewhere
  double scale_ = 1;
  std::vector<std::uint8_t> present_;  ///< a flag per trainable parameter
};

}  // namespace stormo::train
