#include <cli/train/evaluator.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include <cli/trained/evaluate.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/sampling.h>

namespace stormo::cli {
namespace {

constexpr int kLookEveryMs = 200;
constexpr int kLowestPriority = 19;

Result<std::int64_t> last_step(const train::Recipe& recipe) {
  if (recipe.train.steps > 0) return recipe.train.steps;
  STORMO_ASSIGN_OR_RETURN(const train::RecipeData data, train::load_data(recipe));
  return train::make_sampler(*data.train, recipe.train, 0, 1).steps_until(0, recipe.train.epochs);
}

/// A run that was ended early, or has failed. `last`: the model of its last checkpoint.
Status end_without_last_step(const std::optional<train::TrainedModel>& last, std::int64_t end,
                             bool as_json) {
  if (!last) {
    return Status(Code::kPeerLost,
                  "the run is over, or has not begun: none of its servers answers, "
                  "and there is no checkpoint of it");
  }
  fmt::print(stderr, "stormo train: the run has ended after step {} of {}\n", last->step, end);
  return evaluate_model(*last, as_json, HeldOut::kAfterTraining);
}

/// Waits until it is time to look again; kInterrupted when asked to stop.
Status wait_to_look(int stop_fd) {
  pollfd wanted{.fd = stop_fd, .events = POLLIN, .revents = 0};
  if (::poll(&wanted, 1, kLookEveryMs) <= 0) return {};
  return Status(Code::kInterrupted, "the evaluator was asked to stop");
}

}  // namespace

Status evaluate_checkpoints(const TrainRun& run, const std::function<bool(bool began)>& is_over,
                            int stop_fd) {
  const train::Recipe& recipe = run.parsed.recipe;
  if (recipe.train.checkpoint.directory.empty()) {
    return invalid_argument(
        "an evaluator reads the checkpoints of the run: write checkpoint.directory=DIR and "
        "checkpoint.every=N");
  }
  // workers on this host come first; threads that are started later inherit it
  (void)::setpriority(PRIO_PROCESS, 0, kLowestPriority);
  STORMO_ASSIGN_OR_RETURN(const std::int64_t end, last_step(recipe));
  const std::string first = newest_checkpoint_of(run);
  std::string seen;
  std::optional<train::TrainedModel> last;
  while (!last || last->step < end) {
    const bool was_over =
        is_over(seen != first && !seen.empty());  // what was saved before that is seen now
    const std::string newest = newest_checkpoint_of(run);
    if (newest.empty() || newest == seen) {
      if (was_over) return end_without_last_step(last, end, run.words.json);
      STORMO_RETURN_IF_ERROR(wait_to_look(stop_fd));
      continue;
    }
    Result<train::TrainedModel> model = train::load_trained_model(newest);
    if (!model.ok() && newest_checkpoint_of(run) != newest) continue;  // it was retired meanwhile
    STORMO_RETURN_IF_ERROR(model.status());
    const bool is_last = model->step >= end;
    STORMO_RETURN_IF_ERROR(
        evaluate_model(*model, run.words.json, is_last ? HeldOut::kAll : HeldOut::kDuringTraining));
    seen = newest;
    last = std::move(*model);
  }
  return {};
}

}  // namespace stormo::cli
