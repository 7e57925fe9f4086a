#include <stormo/train/loop/run_model.h>

#include <cstdint>
#include <utility>

#include <stormo/train/agreement/replica_check.h>
#include <stormo/train/loop/population_report.h>
#include <stormo/train/population/distillation.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/step/few_numbers.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/step/variance_freeze.h>

namespace stormo::train {
namespace {

/// What a model that was made in parts may take as a whole, for its sample.
constexpr std::int64_t kMostWholeBytes = 256 << 20;

}  // namespace

// Where some rank lacks values, none has all of them later, unless each needs them.
Status RunModel::make_parameters() {
  const std::shared_ptr<torch::nn::Module>& module = run_.setup.task.module;
  const plan::StepPlan& plan = run_.setup.plan;
  const std::shared_ptr<model::Chain> in_parts = chain_in_parts(module, plan);
  const auto chain = std::dynamic_pointer_cast<model::Chain>(module);
  const bool own = is_population(plan);
  std::int64_t lacks = chain != nullptr && chain->lacks_values() ? 1 : 0;
  if (in_parts != nullptr) {
    STORMO_RETURN_IF_ERROR(
        run_.world.all_reduce(std::span<std::int64_t>(&lacks, 1), comm::ReduceOp::kMax));
    made_in_parts_ = lacks > 0;
  } else if (lacks > 0) {
    // others get them from rank 0, but for members of a population
    for (std::size_t s = 0; s < chain->segments().size(); ++s) {
      if (!chain->lacks_values(s)) continue;
      const bool makes = (run_.world.rank() == 0 || own) && !run_.options.resume;
      makes ? chain->make_values(s) : chain->give_memory(s);
    }
  }
  STORMO_RETURN_IF_ERROR(run_.state.start(own                   ? RunState::Values::kOwn
                                          : in_parts != nullptr ? RunState::Values::kLater
                                                                : RunState::Values::kEqual));
  groups_ = std::make_unique<AxisGroups>(run_.world, plan);
  groups_->set_sink(&run_.lanes);
  MaterializeSegment bring;
  if (in_parts != nullptr) {
    bring = [&](std::size_t segment) { run_.state.materialize_segment(*in_parts, segment); };
  }
  store_ = make_store(plan, *groups_, module, run_.options, run_.setup.facts, bring);
  store_->set_sink(&run_.lanes);
  if (store_->population() != nullptr) store_->population()->set_judge(judge_of(run_.setup));
  if (run_.setup.freeze_after > 0) freeze_after(*store_, run_.setup.freeze_after);
  if (in_parts != nullptr) parts_.emplace(*in_parts, *store_);
  if (run_.setup.task.autocast == torch::kHalf) {
    scaler_ = std::make_unique<GradScaler>(run_.world, run_.options.loss_scale);
  }
  STORMO_RETURN_IF_ERROR(run_.state.attach(*store_, scaler_.get()));
  return keeps_residuals(plan) || own ? run_.state.load_residuals().within("resume") : Status();
}

void RunModel::go_on(std::unique_ptr<Optimizer>& kept) {
  const plan::StepPlan& plan = run_.setup.plan;
  const std::shared_ptr<torch::nn::Module>& module = run_.setup.task.module;
  groups_ = run_.setup.mesh_ranks
                ? std::make_unique<AxisGroups>(run_.world, plan, *run_.setup.mesh_ranks)
                : std::make_unique<AxisGroups>(run_.world, plan);
  groups_->set_sink(&run_.lanes);
  store_ = make_committed_store(plan, *groups_, module, run_.options, std::move(kept));
  store_->set_sink(&run_.lanes);
  const std::shared_ptr<model::Chain> in_parts = chain_in_parts(module, plan);
  made_in_parts_ = in_parts != nullptr;
  if (made_in_parts_) parts_.emplace(*in_parts, *store_);
  run_.state.go_on(*store_);
}

std::unique_ptr<Optimizer> RunModel::take_optimizer() {
  return store_ ? store_->take_optimizer() : nullptr;
}

Status RunModel::make_runner(RunnerParts parts) {
  parts.before_update = [this] { run_.state.before_update(); };
  parts.scaler = scaler_.get();
  parts.clip_norm = clip_norm_of(run_.setup.plan, run_.options);
  parts.done = run_.setup.done;
  STORMO_ASSIGN_OR_RETURN(runner_,
                          Runner::create(run_.setup.plan, run_.mesh_rank(), std::move(parts)));
  return {};
}

Task RunModel::task_of_steps() const {
  const Task& task = run_.setup.task;
  const bool learns = run_.options.strategy.kind == Strategy::Kind::kCodistillation;
  PopulationStore* const population = store_->population();
  return learns && population != nullptr ? distilled(task, *population, run_.options.distillation)
                                         : task;
}

void RunModel::pass_no_events() {
  if (groups_) groups_->set_sink(nullptr);
}

// No rank need have memory for all of a model that was made in parts.
std::shared_ptr<void> RunModel::whole() {
  std::int64_t bytes = 0;
  for (const plan::ParameterShape* p : flatten(run_.setup.plan.model)) {
    bytes += p->elements * static_cast<std::int64_t>(size_of(p->dtype));
  }
  return made_in_parts_ && bytes > kMostWholeBytes ? nullptr : store_->gather();
}

Result<std::string> RunModel::check_weights() {
  STORMO_RETURN_IF_ERROR(run_.state.share_buffers());
  return check_replicas(
      run_.world, parts_ ? parts_->tensors() : visit_all(named_state(*run_.setup.task.module)));
}

}  // namespace stormo::train
