#include <stormo/train/strategy.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <stormo/train/host_shared_store.h>
#include <stormo/train/replicated_store.h>
#include <stormo/train/segment_range.h>
#include <stormo/train/sharded_store.h>

namespace stormo::train {
namespace {

std::string builder_of(Reducer reducer) {
  switch (reducer) {
    case Reducer::kAuto: return {};
    case Reducer::kRing: return "ring_all_reduce";
    case Reducer::kHierarchical: return "hierarchical_all_reduce";
    case Reducer::kReduceToOne: return "star_all_reduce";
  }
  return {};
}

std::optional<torch::ScalarType> scalar_type_of(ReduceType type) {
  switch (type) {
    case ReduceType::kOwn: return {};
    case ReduceType::kBFloat16: return torch::kBFloat16;
    case ReduceType::kFloat16: return torch::kHalf;
  }
  return {};
}

Reduction reduction_for(const GradientOptions& options) {
  Reduction how;
  how.algorithm = options.deterministic ? "canonical_all_reduce" : builder_of(options.reducer);
  how.travels_as = scalar_type_of(options.reduce_type);
  if (options.bucket_bytes > 0) {
    how.overlap = Overlap::buckets(options.bucket_bytes);
  } else if (!options.overlap) {
    how.overlap = Overlap::at_the_end();
  }
  return how;
}

}  // namespace

Result<Strategy> strategy_of(const TrainerOptions& options) {
  Strategy strategy = options.strategy;
  const GradientOptions& gradients = options.gradients;
  if (gradients.deterministic && gradients.reducer != Reducer::kAuto) {
    return invalid_argument(
        "deterministic gradients have a reduction of their own; leave out the reducer");
  }
  if (gradients.reducer == Reducer::kAuto && gradients.bucket_bytes == 0) return strategy;
  if (strategy.kind == Strategy::Kind::kFsdp || strategy.kind == Strategy::Kind::kCentralStorage) {
    return invalid_argument(
        "a reducer or bucket_bytes say how replicas average gradients; this strategy has none: "
        "leave them out, or use 'ddp'");
  }
  if (strategy.parameters == Strategy::Parameters::kAuto) {
    strategy.parameters = Strategy::Parameters::kReplicated;
  }
  return strategy;
}

Result<plan::StepPlan> plan_for(const Strategy& strategy, plan::ModelShape model,
                                const std::vector<NamedParameter>& parameters,
                                comm::Communicator& world) {
  const bool can_share =
      HostSharedParameters::possible(world) &&
      std::all_of(parameters.begin(), parameters.end(), HostSharedParameters::can_hold);
  return parallel::plan_for(strategy, std::move(model),
                            {.ranks_per_host = world.ranks_per_host(), .can_share = can_share});
}

std::unique_ptr<ParameterStore> make_store(const plan::StepPlan& plan, comm::Communicator& world,
                                           const std::shared_ptr<torch::nn::Module>& module,
                                           const TrainerOptions& options) {
  const std::vector<NamedParameter> parameters = trainable_parameters(*module);
  const Reduction how = reduction_for(options.gradients);
  if (plan.mesh.find("shard") >= 0) {
    const ShardingOptions sharding{
        .stage = options.strategy.stage,
        .prefetch = options.gradients.overlap && world.cross_size() > 1 ? 1 : 0,
        .hybrid = options.strategy.hybrid,
        .deterministic = options.gradients.deterministic,
        .precision = {.reduce = how.travels_as}};
    return std::make_unique<ShardedStore>(world, module, options.optimizer, sharding);
  }
  if (plan.mesh.find("host") >= 0) {
    return std::make_unique<HostSharedStore>(world, options.optimizer, parameters, how);
  }
  std::vector<ParameterRange> ranges;
  for (const plan::Action& a : plan.actions) {
    if (a.kind != plan::ActionKind::kAllReduce) continue;
    ranges.push_back(parameters_of(plan.model, a, parameters).take_or_throw());
  }
  return std::make_unique<ReplicatedStore>(world, make_optimizer(options.optimizer, parameters),
                                           ranges, how);
}

}  // namespace stormo::train
