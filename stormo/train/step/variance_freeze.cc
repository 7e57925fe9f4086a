#include <stormo/train/step/variance_freeze.h>

#include <stormo/base/requirements.h>
#include <stormo/parallel/strategy/strategy_table.h>
#include <stormo/train/store/replicated_store.h>

namespace stormo::train {

Status check_freeze(const TrainerOptions& options, bool scales_loss) {
  using Kind = OptimizerOptions::Kind;
  const OptimizerOptions& o = options.optimizer;
  const Strategy& s = options.strategy;
  const bool replicates =
      parallel::row_of(s.kind).all_reduces && s.parameters == Strategy::Parameters::kReplicated;
  Requirements require;
  require(o.kind == Kind::kAdam || o.kind == Kind::kAdamW,
          "only adam and adamw have a mean of squares that can be frozen: use one of them, or "
          "leave out the step");
  require(s.kind != Strategy::Kind::kAuto && replicates,
          "ranks average momenta in place of the gradients of copies: use strategy 'ddp' with "
          "strategy.parameters=replicated");
  require(ranks_of_replica(s) <= 1,
          "each rank has the momentum of the whole model: leave out strategy.pipeline, tensor, "
          "context and spatial");
  require(options.clip_norm == 0,
          "averages of momenta have not the norm of a gradient; leave out train.clip_norm");
  require(!scales_loss,
          "momenta outlive the scale of a loss; use precision bfloat16 or float32, not float16");
  require(!options.commits, "elastic training averages gradients; leave out elastic.enabled");
  require(options.logical_shards == 0,
          "logical shards are sums of gradients; leave out train.logical_shards");
  require(options.gradients.reducer != Reducer::kAdasum,
          "adasum looks at the directions of gradients, not of momenta; leave it out");
  return require.status();
}

plan::StepPlan plan_before_freeze(plan::StepPlan plan) {
  for (plan::Action& a : plan.actions) a.codec = Codec::kNone;
  return plan;
}

void freeze_after(ParameterStore& store, std::int64_t steps) {
  dynamic_cast<ReplicatedStore&>(store).freeze_after(steps);
}

}  // namespace stormo::train
