#include <cli/trained/model.h>

#include <cli/commands.h>
#include <cli/train/report.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/failure.h>
#include <stormo/train/world/init.h>

namespace stormo::cli {
namespace {

Status open_and_use(const ModelChoice& choice,
                    const std::function<Status(const train::TrainedModel&)>& use) {
  STORMO_ASSIGN_OR_RETURN(const std::string checkpoint,
                          choice.best ? checkpoint::best_checkpoint(choice.path)
                                      : checkpoint::find_checkpoint(choice.path));
  STORMO_ASSIGN_OR_RETURN(const train::TrainedModel model,
                          train::load_trained_model(checkpoint, choice.overrides));
  const auto threads = static_cast<int>(model.recipe.threads);  // as in training
  const World world = stormo::init(comm::join({}).take_or_throw(), threads);
  return use(model);
}

}  // namespace

int with_trained_model(const char* command, const ModelChoice& choice,
                       const std::function<Status(const train::TrainedModel&)>& use) {
  Status done;
  try {
    done = open_and_use(choice, use);
  } catch (...) {
    done = train::failure_of_current_exception();
  }
  return done.ok() ? kExitOk : say_failed(command, done, choice.json);
}

}  // namespace stormo::cli
