#pragma once

#include <string>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::cli {

/// Of a training that failed: what the user can put right before it starts is told apart from what
/// went wrong.
int exit_code_of(const Status& status);
/// Tells a program that reads standard output why there was no run, or no end of it.
void write_error_event(int exit_code, const std::string& message);
/// Says on standard error why a command failed, a line for each error, and with `json` also to a
/// program. Returns the exit code.
int say_failed(const char* command, int exit_code, const std::vector<std::string>& errors,
               bool json);
/// The same; arguments that are wrong, or name what is not there, are wrong usage.
int say_failed(const char* command, const Status& why, bool json);

/// Warnings for the user, before a run starts.
void warn(const std::vector<std::string>& lines);

/// Set for the ranks by a launcher whose standard error is a terminal: its width in columns.
inline constexpr const char* kTerminalVariable = "STORMO_TERMINAL";
/// Set for ranks that `stormo train` launches: all ranks of a host share its memory.
inline constexpr const char* kCheckMemoryVariable = "STORMO_CHECK_MEMORY";
/// Width of the terminal behind standard error, 0 when there is none.
int terminal_columns();

/// A line for the user of a run that lost a peer: the newest checkpoint, and how to go on from it.
/// `command`: that of the run.
std::string how_to_continue(const std::string& checkpoint, const char* command = "train");
/// The same to standard error, for a launcher that knows the folder of the checkpoints.
void say_how_to_continue(const std::string& directory, const char* command);

}  // namespace stormo::cli
