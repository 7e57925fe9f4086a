#include <cli/train/evaluator.h>

#include <poll.h>

#include <string>

#include <cli/trained/evaluate.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/sampling.h>

namespace stormo::cli {
namespace {

constexpr int kLookEveryMs = 200;

Result<std::int64_t> last_step(const train::Recipe& recipe) {
  if (recipe.train.steps > 0) return recipe.train.steps;
  STORMO_ASSIGN_OR_RETURN(const train::RecipeData data, train::load_data(recipe));
  return train::make_sampler(*data.train, recipe.train, 0, 1).steps_until(0, recipe.train.epochs);
}

/// Empty: there is none, or it is not whole yet.
std::string newest_of(const std::string& directory) {
  const Result<std::string> newest = checkpoint::newest_checkpoint(directory);
  return newest.ok() ? *newest : "";
}

/// Waits until it is time to look again; kInterrupted when asked to stop.
Status wait_to_look(int stop_fd) {
  pollfd wanted{.fd = stop_fd, .events = POLLIN, .revents = 0};
  if (::poll(&wanted, 1, kLookEveryMs) <= 0) return {};
  return Status(Code::kInterrupted, "the evaluator was asked to stop");
}

}  // namespace

Status evaluate_checkpoints(const train::Recipe& recipe, bool json, int stop_fd) {
  const std::string& directory = recipe.train.checkpoint.directory;
  if (directory.empty()) {
    return invalid_argument(
        "an evaluator reads the checkpoints of the run: write checkpoint.directory=DIR and "
        "checkpoint.every=N");
  }
  STORMO_ASSIGN_OR_RETURN(const std::int64_t end, last_step(recipe));
  // what an earlier run has left is no checkpoint of this one
  std::string seen = recipe.train.resume ? "" : newest_of(directory);
  for (std::int64_t step = -1; step < end;) {
    const std::string newest = newest_of(directory);
    if (newest.empty() || newest == seen) {
      STORMO_RETURN_IF_ERROR(wait_to_look(stop_fd));
      continue;
    }
    const Result<train::TrainedModel> model = train::load_trained_model(newest);
    if (!model.ok() && newest_of(directory) != newest) continue;  // it was retired meanwhile
    STORMO_RETURN_IF_ERROR(model.status());
    STORMO_RETURN_IF_ERROR(evaluate_model(*model, json));
    seen = newest;
    step = model->step;
  }
  return {};
}

}  // namespace stormo::cli
