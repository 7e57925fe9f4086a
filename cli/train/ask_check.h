#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cli/train/arguments.h>
#include <stormo/launch/job/launcher.h>

namespace stormo::cli {

/// A run that stormo-train has checked; or nothing, with the exit code, after the cause was said.
struct AskedCheck {
  std::optional<CheckedRun> run;
  int exit_code = 0;
};

/// Has stormo-train check what `words` ask for, which begin with a command of own_program.h that
/// prints a CheckedRun. `loaded`: as for ask_train_program(). `fail` says a cause that the check
/// itself cannot say, and returns the exit code.
AskedCheck ask_check(std::vector<std::string> words, launch::ForkServer* loaded,
                     const std::function<int(int exit_code, const std::string& message)>& fail);

/// The ranks of `options` run the program that has checked, with its libtorch, and these words.
void set_checked_program(launch::LaunchOptions& options, const CheckedRun& run,
                         const std::vector<std::string>& words,
                         std::shared_ptr<launch::ForkServer> loaded);

}  // namespace stormo::cli
