#include <cli/strads/train_check.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include <cli/strads/train.h>
#include <cli/train/arguments.h>
#include <cli/train/check.h>
#include <stormo/base/printable.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/train/blocks/block_recipe.h>

namespace stormo::cli {
namespace {

using Wrong = std::vector<std::string>;

void check_module(const torch::nn::Module& module, const StradsTrainArguments& a, int workers,
                  Wrong& wrong) {
  if (!module.buffers().empty()) {
    wrong.emplace_back(
        "model.kind: this model has running statistics, which training by blocks has not; choose "
        "another one");
  }
  const double bytes = train::bytes_of_conflicts(module, a.units) * workers;
  if (a.schedule.checks() && bytes > static_cast<double>(launch::available_memory())) {
    wrong.push_back(
        fmt::format("--units: conflicts of blocks of {} may need {:.3g} GB, more than the memory "
                    "that is available; raise it, or give --no-check",
                    a.units, bytes / 1e9));
  }
}

}  // namespace

train::ParsedRecipe recipe_of(const StradsTrainArguments& a) {
  std::vector<std::string> overrides = a.overrides;
  if (!a.checkpoint.empty()) overrides.push_back("checkpoint.directory=" + a.checkpoint);
  if (a.rounds) overrides.push_back("train.steps=" + std::to_string(*a.rounds));
  return train::load_recipe(a.recipe, overrides);
}

Result<SoundTraining> check_training(const train::ParsedRecipe& parsed,
                                     const StradsTrainArguments& a, std::optional<int> ranks,
                                     bool look_at_checkpoints) {
  Wrong wrong = parsed.errors;
  check_common(a.common, &a.schedule, 0, wrong);
  if (a.resume && a.overwrite) {
    wrong.emplace_back("--resume goes on from checkpoints, --overwrite replaces them; give one");
  }
  if (!parsed.readable) return invalid_argument(fmt::format("{}", fmt::join(wrong, "\n")));
  for (std::string& error : train::check_block_recipe(parsed)) wrong.push_back(std::move(error));
  const int asked = workers_of(a.common, wrong);
  const int workers = a.common.virtual_workers ? asked : ranks.value_or(asked);
  for (std::string& error : train::check_recipe(parsed, workers)) wrong.push_back(std::move(error));
  if (a.resume && parsed.recipe.train.checkpoint.directory.empty()) {
    wrong.emplace_back(
        "--resume: the recipe names no folder of checkpoints; give --checkpoint DIR");
  }
  SoundTraining run{.recipe = parsed.recipe, .data = {}, .task = {}};
  std::optional<train::RecipeData> data = check_data(parsed, a.resume, {}, wrong);
  if (wrong.empty()) {
    run.data = std::move(*data);
    const train::TrainerOptions& t = run.recipe.train;
    const std::int64_t pass = (run.data.train->size() + t.global_batch - 1) / t.global_batch;
    run.rounds = t.steps > 0 ? t.steps : t.epochs * pass;
    run.every = a.schedule.every.value_or(pass);
    STORMO_ASSIGN_OR_RETURN(run.task, train::make_task(run.recipe, run.data.preprocessing));
    check_module(*run.task.module, a, workers, wrong);
    const bool goes_on = look_at_checkpoints && a.resume;
    const Status ours =
        goes_on ? train::BlockCheckpoint::check(checkpoint_options(a, run)) : Status();
    if (!ours.ok()) {
      wrong.push_back(ours.within("--resume").message());
    } else if (look_at_checkpoints) {
      check_checkpoints(parsed, a.resume, a.overwrite, {}, wrong);
    }
  }
  if (wrong.empty()) return run;
  return invalid_argument(fmt::format("{}", fmt::join(wrong, "\n")));
}

train::BlockCheckpointOptions checkpoint_options(const StradsTrainArguments& a,
                                                 const SoundTraining& run) {
  return {.directory = run.recipe.train.checkpoint.directory,
          .keep = run.recipe.train.checkpoint.keep,
          .resume = a.resume,
          .overwrite = a.overwrite,
          .name = run.recipe.train.name,
          .recipe_json = train::to_json(run.recipe),
          .preprocessing_json = train::to_json(run.data.preprocessing),
          .schedule = schedule_text(a, run.every)};
}

std::string schedule_text(const StradsTrainArguments& a, std::int64_t every) {
  const ScheduleArguments& s = a.schedule;
  std::string text = fmt::format("--round {} --units {}", s.round, a.units);
  if (s.cyclic) return text + " --cyclic";
  text += fmt::format(" --seed {}", a.common.seed);
  text += s.no_check ? " --no-check" : fmt::format(" --threshold {}", s.threshold);
  text += s.no_priority ? " --no-priority" : fmt::format(" --base-weight {}", s.base_weight);
  // no round is in flight at a judgement, so it then depends on these, too
  if (s.depth > 0) text += fmt::format(" --depth {} --every {}", s.depth, every);
  return text;
}

int check_strads_train_run(const StradsTrainArguments& a) {
  const Result<SoundTraining> run =
      check_training(recipe_of(a), a, std::nullopt, /*look_at_checkpoints=*/true);
  const Status status =
      run.ok() ? print_checked_run({.checkpoint_directory = run->recipe.train.checkpoint.directory})
               : run.status();
  if (status.ok()) return kExitOk;
  fmt::print(stderr, "stormo strads train: {}\n", printable(status.message()));
  return kExitUsage;
}

}  // namespace stormo::cli
