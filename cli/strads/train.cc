// `stormo strads train`: a rank, or all workers in virtual time.
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <cli/engine.h>
#include <cli/output_path.h>
#include <cli/strads/program.h>
#include <cli/train/check.h>
#include <cli/train/report.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/train/blocks/block_recipe.h>
#include <stormo/train/blocks/block_run.h>
#include <stormo/train/evaluation/evaluate.h>
#include <stormo/train/failure.h>
#include <stormo/train/loop/run_facts.h>
#include <stormo/train/loop/stop_signal.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/world/init.h>

namespace stormo::cli {
namespace {

/// The recipe with what the command line changes of it.
train::ParsedRecipe recipe_of(const StradsTrainArguments& a) {
  TrainArguments as_train = a.train;
  if (a.rounds) as_train.overrides.push_back("train.steps=" + std::to_string(*a.rounds));
  return recipe_of(as_train);
}

/// A collective: the signal by which a rank was told to stop; 0: none was.
Result<int> signal_of_any_rank(comm::Communicator& world) {
  std::int64_t told = train::StopSignal::received();
  if (told == 0 && train::StopSignal::take_usr1()) told = SIGUSR1;
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather({&told, 1, DType::kInt64}, all));
  return static_cast<int>(std::ranges::max(all));
}

class NetProgram final : public StradsProgram {
 public:
  explicit NetProgram(const StradsTrainArguments& a)
      : StradsProgram("train", a), a_(a), parsed_(recipe_of(a)), options_(parsed_.recipe.train) {
    set_access(parsed_.recipe.access);
  }

  void check(const StradsJob& job, Wrong& wrong) override;
  std::vector<comm::Fact> facts() const override;
  Result<plan::StepPlan> plan(int workers) override;
  Result<comm::Communicator*> join(const transport::Rendezvous& place) override {
    world_.emplace(stormo::init(join_world("stormo", place).take_or_throw(),
                                static_cast<int>(parsed_.recipe.threads)));
    return &world_->communicator();
  }
  Status leave() override {
    run_.reset();
    noted_.reset();
    world_.reset();
    return {};
  }
  Status begin(comm::Communicator& world) override;
  strads::RoundsRun& rounds() override { return run_->rounds(); }
  Result<std::uint64_t> values_hash() override {
    return std::stoull(train::weights_hash(train::named_state(*task_.module)), nullptr, 16);
  }
  Result<Figures> figures() override;
  std::string saved() override { return run_ ? run_->last_saved() : ""; }
  const std::string& checkpoints() const { return options_.checkpoint.directory; }

 private:
  void check_module(int workers, Wrong& wrong) const;
  train::BlockRunOptions run_options() const {
    return {.train = options_,
            .units = a_.units,
            .schedule = a_.schedule_options(),
            .cyclic = a_.cyclic,
            .threshold = a_.checks() ? std::optional(a_.threshold) : std::nullopt,
            .loop = loop,
            .simulated = simulated};
  }

  const StradsTrainArguments& a_;
  train::ParsedRecipe parsed_;
  train::TrainerOptions& options_;
  train::RecipeData data_;
  train::Task task_;
  std::optional<World> world_;
  std::optional<train::StopSignal> noted_;  // without checkpoints signals end the process
  std::unique_ptr<train::BlockRun> run_;
};

void NetProgram::check(const StradsJob& job, Wrong& wrong) {
  for (std::string& error : problems_of_rank(parsed_, a_.train, job.workers, false)) {
    wrong.push_back(std::move(error));
  }
  check_common(job, 0, wrong);
  if (!parsed_.readable) return;
  for (std::string& error : train::check_block_recipe(parsed_)) wrong.push_back(std::move(error));
  const bool resumes = options_.resume;
  std::optional<train::RecipeData> data = check_data(parsed_, resumes, {}, wrong);
  if (!wrong.empty()) return;
  data_ = std::move(*data);
  options_.preprocessing_json = train::to_json(data_.preprocessing);
  const std::int64_t batch = options_.global_batch,
                     pass = (data_.train->size() + batch - 1) / batch;
  loop = {.rounds = options_.steps > 0 ? options_.steps : options_.epochs * pass,
          .every = a_.every.value_or(pass)};
  Result<train::Task> task = train::make_task(parsed_.recipe, data_.preprocessing);
  if (!task.ok()) return note(task.status(), wrong);
  task_ = std::move(*task);
  check_module(job.workers, wrong);
  if (!job.has_files) return;
  const Status ours =
      resumes ? train::BlockCheckpoint::check(checkpoints(), train::schedule_text(run_options()))
              : Status();
  if (!ours.ok()) return note(ours.within("--resume"), wrong);
  check_checkpoints(parsed_, resumes, options_.overwrite, {}, wrong);
}

void NetProgram::check_module(int workers, Wrong& wrong) const {
  if (!task_.module->buffers().empty()) {
    wrong.emplace_back(
        "model.kind: this model has running statistics, which training by blocks has not; choose "
        "another one");
  }
  const double bytes = train::bytes_of_conflicts(*task_.module, a_.units) * workers;
  if (a_.checks() && bytes > static_cast<double>(launch::available_memory())) {
    wrong.push_back(
        fmt::format("--units: conflicts of blocks of {} may need {:.3g} GB, more than the memory "
                    "that is available; raise it, or give --no-check",
                    a_.units, bytes / 1e9));
  }
}

std::vector<comm::Fact> NetProgram::facts() const {
  std::vector<comm::Fact> facts = train::recipe_facts(parsed_.recipe);
  facts.push_back({"flags", train::schedule_text(run_options())});
  facts.push_back({"training samples",
                   fmt::format("{}, {:016x}", data_.train->size(), data_.train->fingerprint())});
  return facts;
}

Result<plan::StepPlan> NetProgram::plan(int workers) {
  auto plan = train::block_plan(task_, *data_.train, run_options(), workers);
  if (plan.ok()) warn(parsed_.left_out);
  return plan;
}

Status NetProgram::begin(comm::Communicator& world) {
  if (world.rank() == 0) {
    warn(parsed_.left_out);
    warn(data_.warnings);
  }
  if (!checkpoints().empty()) noted_.emplace();
  std::vector<train::Task> tasks{task_};
  while (std::ssize(tasks) < a_.virtual_workers.value_or(1)) {
    STORMO_ASSIGN_OR_RETURN(auto task, train::make_task(parsed_.recipe, data_.preprocessing));
    tasks.push_back(std::move(task));
  }
  STORMO_ASSIGN_OR_RETURN(
      run_, train::BlockRun::begin(world, std::move(tasks), *data_.train, run_options()));
  const std::int64_t done = rounds().scheduler().rounds_done();
  Status enough;
  if (done > loop.rounds) {
    enough = invalid_argument(fmt::format(
        "--resume: {} rounds are done, and the run has {}; give more --rounds", done, loop.rounds));
  }
  STORMO_RETURN_IF_ERROR(comm::check_agreement(world, {}, enough));  // refused by all, said once
  std::int64_t parameters = 0;
  for (const torch::Tensor& p : task_.module->parameters()) parameters += p.numel();
  heading = fmt::format(
      "{}: {} parameters in {} blocks, {} pairs in conflict; {} samples, {} of them in a round",
      options_.name, parameters, rounds().workers().first().blocks(), run_->pairs_in_conflict(),
      data_.train->size(), options_.global_batch);
  events.save = [this](bool last) { return run_->save(last); };
  if (noted_) {
    events.stops = [this]() -> Result<bool> {
      STORMO_ASSIGN_OR_RETURN(signal, signal_of_any_rank(*world_));
      return signal != 0;
    };
  }
  return {};
}

/// Loss and accuracy of the held-out data; a collective.
Result<StradsProgram::Figures> NetProgram::figures() {
  Figures out;
  for (const train::EvalSplit& split : data_.splits) {
    STORMO_ASSIGN_OR_RETURN(const train::Evaluation result, train::evaluate(*world_, task_, split));
    out.emplace_back(split.name + "_loss", result.loss);
    if (result.accuracy) out.emplace_back(split.name + "_accuracy", *result.accuracy);
    if (result.r2) out.emplace_back(split.name + "_r2", *result.r2);
  }
  return out;
}

}  // namespace

int run_strads_train(const StradsTrainArguments& a) {
  try {
    NetProgram program(a);
    return run_program(program, /*may_launch=*/false);
  } catch (...) {
    return say_failed("strads train", train::failure_of_current_exception(), false);
  }
}

int check_strads_train_run(const StradsTrainArguments& a) {
  NetProgram program(a);
  Wrong wrong;
  program.check(job_of(a, wrong), wrong);
  if (wrong.empty()) {
    note(print_checked_run({.checkpoint_directory = program.checkpoints()}), wrong);
  }
  return wrong.empty() ? kExitOk : say_failed("strads train", kExitUsage, wrong, false);
}

}  // namespace stormo::cli
