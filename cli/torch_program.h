#pragma once

#include <string>
#include <vector>

#include <stormo/base/status.h>

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

/// Runs stormo-train with `arguments`, to be killed when this process ends. It says what is wrong
/// on the standard error of this process.
Result<Answer> ask_train_program(std::vector<std::string> arguments);

}  // namespace stormo::cli
