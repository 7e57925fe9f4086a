#pragma once

#include <string>
#include <utility>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::cli {

/// A program to run, with what its environment has besides that of this process.
struct ChildCommand {
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> environment;
};

struct ChildOutcome {
  int status = -1;  ///< as a shell would say it
  std::string out;
  std::string err;
};

/// Runs it to its end; whatever it leaves running is killed. kInterrupted when the user sends
/// SIGINT or SIGTERM meanwhile, kDeadlineExceeded after ten minutes without output.
Result<ChildOutcome> run_child(const ChildCommand& command);

/// The last lines of what a program said, for a message.
std::string tail_of(const std::string& text);

}  // namespace stormo::cli
