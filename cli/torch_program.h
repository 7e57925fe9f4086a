#pragma once

#include <memory>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/launch/process/fork_server.h>

namespace stormo::cli {

/// Goes on as stormo-train, with this process's arguments: it does what needs libtorch. Returns
/// only where that fails.
Status become_train_program();
/// The same for a command that says the cause itself: returns its exit code.
int hand_over();

struct Answer {
  int exit_code = 0;
  int signal = 0;      ///< by which it was killed
  std::string output;  ///< what was on its standard output
};

/// Loads stormo-train once: for `ranks` ranks of this host that get `arguments`, and for questions.
/// Null where each of them loads it by itself.
std::shared_ptr<launch::ForkServer> load_train_program(const std::vector<std::string>& arguments,
                                                       int ranks);

/// Runs stormo-train with `arguments`, to be killed when this process ends. It says what is wrong
/// on the standard error of this process. `loaded` has loaded it; null: it is loaded for this.
Result<Answer> ask_train_program(std::vector<std::string> arguments,
                                 launch::ForkServer* loaded = nullptr);

}  // namespace stormo::cli
