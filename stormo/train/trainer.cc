#include <stormo/train/trainer.h>

#include <algorithm>
#include <string>
#include <utility>

#include <stormo/train/failure.h>
#include <stormo/train/strategy.h>
#include <stormo/train/training_run.h>

namespace stormo::train {
namespace {

plan::ModelShape shape_of(const Task& task) {
  if (task.shape) return *task.shape;
  plan::SegmentShape whole{.name = "module"};
  for (const torch::Tensor& p : task.module->parameters()) whole.num_parameters += p.numel();
  return {.segments = {std::move(whole)}};
}

bool is_validation(const EvalSplit& split) { return split.name == "validation"; }

// Everything that is wrong, one line each.
Status validate(const RunSetup& setup) {
  const TrainerOptions& o = setup.options;
  std::string wrong;
  const auto require = [&wrong](bool holds, const std::string& message) {
    if (!holds) wrong += (wrong.empty() ? "" : "\n") + message;
  };
  require(o.steps > 0 || o.epochs > 0, "set steps or epochs to a positive number");
  require(setup.train != nullptr && setup.train->size() > 0, "the training data is empty");
  require(o.global_batch >= setup.world.size(),
          "the global batch of " + std::to_string(o.global_batch) + " is smaller than the " +
              std::to_string(setup.world.size()) + " ranks; raise it or start fewer ranks");
  require(o.log_every >= 0 && o.eval_every >= 0 && o.verify_every >= 0 && o.checkpoint.every >= 0,
          "intervals in steps must not be negative");
  require(!o.resume || !o.checkpoint.directory.empty(),
          "resume needs the directory of the checkpoints");
  require(!o.resume || !o.overwrite,
          "a run resumes from checkpoints, or overwrites them: not both");
  const Result<Strategy> strategy = strategy_of(o);
  require(strategy.ok(), strategy.status().message());
  require(o.micro_batches >= 1, "micro_batches must be at least 1");
  require(o.optimizer.lr > 0 && o.clip_norm >= 0,
          "the learning rate must be positive, clip_norm not negative");
  const bool best = o.checkpoint.best != "none";
  require(!best || std::ranges::any_of(setup.splits, &is_validation),
          "the best checkpoint is judged by a split \"validation\", which is not there");
  require(o.checkpoint.best != "accuracy" || setup.task.correct,
          "the best checkpoint is judged by its accuracy, but the task has no Task::correct");
  require(o.patience == 0 || best, "patience needs to know what is better: set checkpoint.best");
  for (const EvalSplit& split : setup.splits) {
    require(split.dataset != nullptr && split.dataset->size() > 0 && split.batch > 0,
            "split '" + split.name + "' has no samples, or no batch size");
  }
  return wrong.empty() ? Status() : invalid_argument(std::move(wrong));
}

}  // namespace

struct Trainer::State {
  RunSetup setup;
  Status composed;
  int signal = 0;
  std::string last_saved;

  Result<observe::EndRecord> run();
};

Result<observe::EndRecord> Trainer::State::run() {
  STORMO_RETURN_IF_ERROR(validate(setup));
  STORMO_RETURN_IF_ERROR(composed);
  TrainingRun run(setup);
  Result<observe::EndRecord> end = Status(Code::kException, "nothing was run");
  try {
    end = run.run();
  } catch (...) {
    end = failure_of_current_exception();
  }
  signal = run.interrupt_signal();
  last_saved = run.last_saved();
  return end;
}

Trainer::Trainer(comm::Communicator& world, Task task, std::shared_ptr<const data::Dataset> train,
                 std::vector<EvalSplit> splits, TrainerOptions options)
    : state_(new State{.setup = {.world = world,
                                 .task = std::move(task),
                                 .train = std::move(train),
                                 .splits = std::move(splits),
                                 .options = std::move(options),
                                 .plan = {}},
                       .composed = {}}) {
  RunSetup& setup = state_->setup;
  const Result<Strategy> strategy = strategy_of(setup.options);
  Result<plan::StepPlan> plan = strategy.ok()
                                    ? plan_for(*strategy, shape_of(setup.task),
                                               trainable_parameters(*setup.task.module), world)
                                    : strategy.status();
  if (plan.ok()) {
    setup.plan = std::move(plan).value();
  } else {
    state_->composed = plan.status();
  }
}

Trainer::~Trainer() = default;

void Trainer::set_observer(observe::RunObserver* observer) { state_->setup.observer = observer; }
void Trainer::set_sink(Sink* sink) { state_->setup.sink = sink; }
const plan::StepPlan& Trainer::plan() const { return state_->setup.plan; }
int Trainer::interrupt_signal() const { return state_->signal; }
const std::string& Trainer::last_saved() const { return state_->last_saved; }

Result<observe::EndRecord> Trainer::run() {
  Result<observe::EndRecord> end = Status(Code::kException, "nothing was run");
  try {
    end = state_->run();
  } catch (...) {
    end = failure_of_current_exception();
  }
  const Code code = end.status().code();
  if (!end.ok() && code != Code::kInterrupted) state_->setup.world.fail(end.status());
  return end;
}

}  // namespace stormo::train
