#include <cli/trained_model.h>

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include <cli/commands.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/init.h>

namespace stormo::cli {
namespace {

Status open_and_use(const std::string& path, std::span<const std::string> overrides,
                    const std::function<Status(train::TrainedModel&)>& use) {
  STORMO_ASSIGN_OR_RETURN(const std::string checkpoint, checkpoint::find_checkpoint(path));
  STORMO_ASSIGN_OR_RETURN(train::TrainedModel model,
                          train::load_trained_model(checkpoint, overrides));
  if (model.recipe.threads > 0) {
    ::setenv("STORMO_THREADS", std::to_string(model.recipe.threads).c_str(), 1);
  }
  const World world = stormo::init(comm::join({}).take_or_throw());  // threads as in training
  return use(model);
}

}  // namespace

int with_trained_model(const char* command, const std::string& path,
                       std::span<const std::string> overrides,
                       const std::function<Status(train::TrainedModel&)>& use) {
  Status done;
  try {
    done = open_and_use(path, overrides, use);
  } catch (const Error& e) {
    done = e.status();
  } catch (const std::exception& e) {
    done = Status(Code::kException, e.what());
  }
  if (done.ok()) return kExitOk;
  fmt::print(stderr, "stormo {}: {}\n", command, done.message());
  const bool usage = done.code() == Code::kInvalidArgument || done.code() == Code::kNotFound;
  return usage ? kExitUsage : kExitFailed;
}

}  // namespace stormo::cli
