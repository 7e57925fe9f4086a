#pragma once

#include <string>

#include <stormo/launch/job/launcher.h>

namespace stormo::cli {

/// Has stormo-train check the run of this process's words, and launches its ranks, which run the
/// program that has checked, with its libtorch. Returns the exit code. `command`: the words that
/// name the command, in whose place the check has `check_command` (own_program.h), which prints a
/// CheckedRun. `options`: without a program. `json`: see say_failed().
int check_and_launch(const std::string& command, const char* check_command,
                     launch::LaunchOptions options, int ranks_here, bool json);

}  // namespace stormo::cli
