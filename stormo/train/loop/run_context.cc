#include <stormo/train/loop/run_context.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/plan/logical_shards.h>
#include <stormo/plan/project.h>
#include <stormo/server/worker/worker_session.h>
#include <stormo/train/optimizer/learning_rate.h>
#include <stormo/train/perform/perform.h>
#include <stormo/train/sampling.h>

namespace stormo::train {
namespace {

/// Stages of a pipeline compute the same samples. A worker's mesh has its own ranks only.
data::Sampler sampler_of(const RunSetup& setup) {
  const TrainerOptions& o = setup.options;
  plan::Part mine = data_part(setup.plan.mesh, setup.world.rank());
  if (o.session) {
    mine.index += o.session->worker() * mine.parts;
    mine.parts *= o.session->workers();
  }
  const int shards = setup.plan.logical_shards;
  if (shards == 0) return make_sampler(*setup.train, o, mine.index, mine.parts);
  const plan::ShardRange own = plan::shards_of(shards, mine.parts, mine.index);
  data::Sampler sampler = make_sampler(*setup.train, o, own.first, shards);
  sampler.take_shares(own.size());
  return sampler;
}

/// In one message.
Status add_up_together(comm::Communicator& world, std::span<double> some, std::span<double> others,
                       std::string_view algorithm) {
  if (others.empty()) return add_up(world, some, algorithm);
  std::vector<double> all(some.begin(), some.end());
  all.insert(all.end(), others.begin(), others.end());
  STORMO_RETURN_IF_ERROR(add_up(world, all, algorithm));
  std::copy_n(all.begin(), some.size(), some.begin());
  std::copy_n(all.begin() + std::ssize(some), others.size(), others.begin());
  return {};
}

}  // namespace

RunContext::RunContext(RunSetup& s)
    : setup(s),
      world(s.world),
      options(s.options),
      sampler(sampler_of(s)),
      steps(options.steps),
      state(world, *s.task.module, options, sampler),
      lanes(world.rank()),
      leads(!s.left) {
  lanes.pass_to(s.sink);
  world.set_sink(&lanes);
}

observe::RunObserver& RunContext::observer() const {
  static observe::RunObserver silent;
  return setup.observer != nullptr && world.rank() == 0 ? *setup.observer : silent;
}

void RunContext::warn(std::string kind, std::string message) const {
  observer().on_warning(
      {.kind = std::move(kind), .step = state.step, .message = std::move(message)});
}

Rank RunContext::mesh_rank() const {
  const Rank rank = world.rank();
  return setup.mesh_ranks ? setup.mesh_ranks->numbers[static_cast<std::size_t>(rank)] : rank;
}

int RunContext::hosts() const {
  return options.session ? options.session->hosts() : world.cross_size();
}

double RunContext::rate_of(std::int64_t step) const {
  const double peak =
      scaled_learning_rate(options.learning_rate, options.optimizer.lr, options.global_batch);
  return train::learning_rate(options.learning_rate, peak, step, steps);
}

std::int64_t RunContext::next_common_step() const {
  std::int64_t next = steps;
  for (const std::int64_t every :
       {options.eval_every, options.verify_every,
        options.checkpoint.directory.empty() ? 0 : options.checkpoint.every}) {
    if (every > 0) next = std::min(next, (state.step / every + 1) * every);
  }
  return next;
}

Result<Agreement> agree_on(RunContext& run, const StepOutcome& mine, std::span<double> others) {
  int stop = StopSignal::received();
  const bool usr1 = StopSignal::take_usr1();
  if (usr1 && stop == 0 && run.options.on_usr1 == OnUsr1::kSaveAndExit) stop = SIGUSR1;
  const bool save_failed = run.world.rank() == 0 && run.state.save_failed();
  constexpr std::size_t kStops = StopSignal::kSignals.size();
  std::array<double, kAgreedNumbers> sums{mine.loss_sum, static_cast<double>(mine.samples),
                                          usr1 && run.options.on_usr1 == OnUsr1::kSave ? 1.0 : 0.0,
                                          save_failed ? 1.0 : 0.0};
  for (std::size_t i = 0; i < kStops; ++i)
    sums[4 + i] = stop == StopSignal::kSignals[i] ? 1.0 : 0.0;
  const std::string_view algorithm =
      run.setup.plan.logical_shards > 0 ? plan::kFixedTreeAllReduce : "";
  STORMO_RETURN_IF_ERROR(add_up_together(run.world, sums, others, algorithm));
  const auto stops = std::span(sums).subspan<4, kStops>();
  const auto told = std::find_if(stops.begin(), stops.end(), [](double n) { return n > 0; });
  if (run.state.step < run.steps && told != stops.end()) {
    run.signal = StopSignal::kSignals[static_cast<std::size_t>(told - stops.begin())];
  }
  return Agreement{.loss_sum = sums[0],
                   .samples = static_cast<std::int64_t>(sums[1]),
                   .save_now = sums[2] > 0,
                   .save_failed = sums[3] > 0};
}

}  // namespace stormo::train
