#include <stormo/train/step/few_numbers.h>

#include <algorithm>

#include <fmt/format.h>

#include <stormo/base/requirements.h>
#include <stormo/parallel/strategy/strategy_table.h>
#include <stormo/plan/momentum.h>

namespace stormo::train {

std::optional<codec::MomentumCorrection> momentum_of(const plan::StepPlan& plan) {
  for (const plan::Action& a : plan.actions) {
    if (const auto correction = plan::momentum_of(a)) return correction;
  }
  return {};
}

OptimizerOptions optimizer_of(const plan::StepPlan& plan, const OptimizerOptions& options) {
  OptimizerOptions out = options;
  if (momentum_of(plan)) out.momentum = 0;
  return out;
}

double clip_norm_of(const plan::StepPlan& plan, const TrainerOptions& options) {
  const auto correction = momentum_of(plan);
  return correction && correction->clip_norm > 0 ? 0 : options.clip_norm;
}

Status check_momentum(const plan::StepPlan& plan, const TrainerOptions& options) {
  const auto correction = momentum_of(plan);
  if (!correction) return {};
  const OptimizerOptions& o = options.optimizer;
  Requirements require;
  require(o.kind == OptimizerOptions::Kind::kSgd && !o.nesterov,
          "ranks encode the momentum of sgd, without nesterov: write optimizer.kind=sgd, or leave "
          "out strategy.momentum_correction");
  require(
      o.momentum == correction->momentum,
      fmt::format("ranks encode a momentum of {} in place of the optimizer's, which is {}: give "
                  "it the same optimizer.momentum",
                  correction->momentum, o.momentum));
  require(correction->clip_norm == 0 || correction->clip_norm == options.clip_norm,
          fmt::format("ranks clip gradients by a norm of {} in place of train.clip_norm, which is "
                      "{}: give both the same",
                      correction->clip_norm, options.clip_norm));
  return require.status();
}

Status check_density_warmup(const TrainerOptions& options) {
  const bool is_of_gradients = parallel::row_of(options.strategy.kind).all_reduces;
  const bool has_density = row_of(options.gradients.codec).has_density;
  if (!is_of_gradients || has_density || options.averaging.warmup_steps == 0) return {};
  return invalid_argument(
      "lowers the share of gradients that travels to strategy.density: write "
      "strategy.compression=top_k, threshold or random_k, or leave it out");
}

plan::StepPlan with_density_of_step(plan::StepPlan plan, std::int64_t number,
                                    std::int64_t warmup_steps) {
  for (plan::Action& a : plan.actions) {
    if (!row_of(a.codec).has_density) continue;
    a.codec.density = codec::density_in_step(a.codec.density, number, warmup_steps);
  }
  return plan;
}

}  // namespace stormo::train
