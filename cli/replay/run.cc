// `stormo replay`: trains again in the order of a record.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include <cli/commands.h>
#include <cli/replay/arguments.h>
#include <cli/train/report.h>
#include <stormo/train/failure.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/record/replay.h>
#include <stormo/train/record/run_record.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::cli {
namespace {

/// What a replay came to.
struct Replayed {
  std::int64_t gradients = 0;
  std::string weights_hash;
  double wall_s = 0;
};

Result<Replayed> replay(const ReplayArguments& a, const train::RunRecord& record) {
  const train::ParsedRecipe parsed = train::restore_recipe(record.recipe_json, a.overrides);
  if (!parsed.errors.empty()) {
    return invalid_argument(fmt::format("{}", fmt::join(parsed.errors, "\n")));
  }
  const train::TrainerOptions was = train::restore_recipe(record.recipe_json, {}).recipe.train;
  if (parsed.recipe.train.steps != was.steps || parsed.recipe.train.epochs != was.epochs) {
    return invalid_argument("a replay has the steps of its run; leave out steps and epochs");
  }
  at::set_num_threads(record.threads);
  STORMO_ASSIGN_OR_RETURN(const train::RecipeData data, train::load_data(parsed.recipe));
  STORMO_ASSIGN_OR_RETURN(const train::Task task,
                          train::make_task(parsed.recipe, data.preprocessing));
  STORMO_ASSIGN_OR_RETURN(const auto events, train::read_events(a.directory, record));
  const auto start = std::chrono::steady_clock::now();
  const auto print = [&](const train::ReplayedStep& step) {
    if (!a.json) return;
    const nlohmann::json line = {{"event", "step"},
                                 {"worker", step.worker},
                                 {"step", step.step + 1},
                                 {"loss", step.loss},
                                 {"samples", step.samples}};
    fmt::print("{}\n", line.dump());
  };
  Replayed out;
  STORMO_ASSIGN_OR_RETURN(out.gradients, train::replay(task, *data.train, parsed.recipe.train,
                                                       record.steps, events, print));
  out.weights_hash = train::weights_hash(train::named_state(*task.module));
  out.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

/// Returns the exit code.
int report(const ReplayArguments& a, const train::RunRecord& record, const Replayed& done) {
  const bool ended = !record.weights_hash.empty();
  const bool same = done.weights_hash == record.weights_hash;
  if (a.json) {
    nlohmann::json line = {{"event", "end"},
                           {"workers", record.workers},
                           {"gradients", done.gradients},
                           {"wall_s", done.wall_s},
                           {"weights_hash", done.weights_hash}};
    line["recorded_hash"] = ended ? nlohmann::json(record.weights_hash) : nlohmann::json(nullptr);
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("replayed {} gradients of {} workers in {:.1f} s\n", done.gradients, record.workers,
               done.wall_s);
    fmt::print("weights hash {}: {}\n", done.weights_hash,
               !ended ? "the recorded run did not come to its end"
               : same ? "as in the recorded run"
                      : fmt::format("the recorded run had {}", record.weights_hash));
  }
  return !ended || same ? kExitOk : kExitFailed;
}

}  // namespace

int run_replay(const ReplayArguments& a) {
  constexpr const char* kReplay = "replay";
  const Result<train::RunRecord> record = train::read_run_record(a.directory);
  if (!record.ok()) {
    return say_failed(kReplay, kExitUsage, {record.status().message()}, a.json);
  }
  try {
    const Result<Replayed> done = replay(a, *record);
    return done.ok() ? report(a, *record, *done) : say_failed(kReplay, done.status(), a.json);
  } catch (...) {
    const std::string why = train::failure_of_current_exception().message();
    return say_failed(kReplay, kExitFailed, {why}, a.json);
  }
}

}  // namespace stormo::cli
