#include <stormo/train/run/common_run.h>

#include <array>
#include <span>
#include <utility>
#include <vector>

#include <stormo/plan/project.h>
#include <stormo/train/autograd/seed_step.h>
#include <stormo/train/loop/stop_signal.h>
#include <stormo/train/worker/task_loader.h>

namespace stormo::train {

Status CommonRun::prepare() {
  load_from(run_.sampler);
  return {};
}

void CommonRun::load_from(const data::Sampler& sampler) { prefetcher_ = prefetcher_of(sampler); }

std::unique_ptr<data::Prefetcher> CommonRun::prefetcher_of(const data::Sampler& sampler) const {
  return std::make_unique<data::Prefetcher>(run_.setup.train, sampler, run_.state.samples,
                                            prefetch_depth(run_.options),
                                            run_.options.data_threads);
}

Result<data::Batch> CommonRun::load() {
  const std::string step = "step " + std::to_string(run_.state.step + 1);
  run_.world.set_section(step + " load");
  STORMO_ASSIGN_OR_RETURN(data::StepBatch next, prefetcher_->next());
  run_.world.set_section(step + " forward and backward");
  loaded_samples_ = next.slice.global_size;
  return std::move(next.batch);
}

Status CommonRun::train() {
  begin_training();
  while (run_.state.step < run_.steps && run_.signal == 0 && !evaluation_.is_enough()) {
    if (model_.store().optimizer().has_converged()) {
      run_.end.converged = true;
      evaluation_.set_enough();
      break;
    }
    const std::string section = "step " + std::to_string(run_.state.step + 1);
    run_.world.set_section(section);
    STORMO_RETURN_IF_ERROR(train_some(section));
  }
  progress_.log().pause();
  run_.state.before_update();
  return model_.store().optimizer().finish();
}

void CommonRun::begin_step(std::int64_t number) {
  const std::int64_t step = number - 1;
  seed_step(run_.options.seed, step, random_stream(run_.setup.plan, run_.mesh_rank()));
  run_.lanes.set_step(number);
  run_.learning_rate = run_.rate_of(step);
}

Status CommonRun::meet(const std::string& section, bool agreed) {
  if (run_.state.step == run_.steps) {
    STORMO_RETURN_IF_ERROR(model_.store().optimizer().finish());
  }
  return between_steps(agreed).within("after " + section);
}

Status CommonRun::between_steps(bool agreed) {
  const std::int64_t step = run_.state.step;
  run_.world.set_section("after step " + std::to_string(step));
  const bool last = step == run_.steps || run_.signal != 0;
  STORMO_RETURN_IF_ERROR(progress_.show(agreed, last));
  if (last) return {};
  progress_.log().pause();
  if (agreed_.save_failed) STORMO_RETURN_IF_ERROR(saves_.note_last());
  if (is_due(step, run_.options.verify_every)) {
    const std::shared_ptr<void> shown = model_.gather();
    STORMO_RETURN_IF_ERROR(model_.check_weights().status());
  }
  // Who gives notice may soon kill: what it asks for is written before anything else.
  if (agreed_.save_now) STORMO_RETURN_IF_ERROR(saves_.save(/*in_background=*/false));
  // The evaluation next: what it says is part of the state that is saved.
  if (is_due(step, run_.options.eval_every)) STORMO_RETURN_IF_ERROR(evaluate());
  if (is_due(step, run_.options.checkpoint.every) && !saves_.has(step)) {
    STORMO_RETURN_IF_ERROR(saves_.save(run_.options.checkpoint.asynchronous));
  }
  progress_.log().resume();
  return {};
}

bool CommonRun::was_told() const {
  const bool usr1 = run_.options.on_usr1 != OnUsr1::kIgnore && StopSignal::has_usr1();
  return usr1 || StopSignal::received() != 0;
}

Status CommonRun::take_slowest_position() {
  std::array position{run_.state.step, run_.state.samples};
  STORMO_RETURN_IF_ERROR(
      run_.world.all_reduce(std::span<std::int64_t>(position), comm::ReduceOp::kMin));
  run_.state.step = position[0];
  run_.state.samples = position[1];
  return {};
}

Status CommonRun::note_end() {
  auto mine = static_cast<std::int64_t>(model_.groups().bytes_sent());
  std::vector<std::int64_t> all(static_cast<std::size_t>(run_.world.size()));
  STORMO_RETURN_IF_ERROR(run_.world.all_gather(comm::Buffer{&mine, 1, DType::kInt64}, all));
  run_.end.bytes_sent_per_rank.assign(all.begin(), all.end());
  return {};
}

}  // namespace stormo::train
