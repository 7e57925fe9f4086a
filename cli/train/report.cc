#include <cli/train/report.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <iostream>

#include <cli/commands.h>
#include <stormo/base/printable.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/observe/json_lines.h>

namespace stormo::cli {

int terminal_columns() {
  if (const char* inherited = std::getenv(kTerminalVariable)) return std::atoi(inherited);
  if (::isatty(STDERR_FILENO) == 0) return 0;
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

std::string how_to_continue(const std::string& checkpoint, const char* command) {
  return std::string("stormo ") + command + ": the run can go on from " + checkpoint +
         ": give the same command with --resume (in place of --overwrite)";
}

void say_how_to_continue(const std::string& directory, const char* command) {
  const Result<std::string> newest = checkpoint::newest_checkpoint(directory);
  // where rank 0 is on another host, this one may not see the files
  const std::string where = "the newest checkpoint in '" + directory + "' on the host of rank 0";
  std::cerr << how_to_continue(newest.ok() ? *newest : where, command) << "\n";
}

void write_error_event(int exit_code, const std::string& message) {
  observe::JsonObserver(std::cout).on_error({exit_code, message});
}

int exit_code_of(const Status& status) {
  switch (status.code()) {
    case Code::kOk: return kExitOk;
    case Code::kInvalidArgument:
    case Code::kNotFound:
    case Code::kRefused:
    case Code::kCorrupt: return kExitUsage;
    default: return kExitFailed;
  }
}

int say_failed(const char* command, int exit_code, const std::vector<std::string>& errors,
               bool json) {
  for (const std::string& error : errors)
    fmt::print(stderr, "stormo {}: {}\n", command, message_text(error));
  if (json) write_error_event(exit_code, fmt::format("{}", fmt::join(errors, "\n")));
  return exit_code;
}

int say_failed(const char* command, const Status& why, bool json) {
  const bool usage = why.code() == Code::kInvalidArgument || why.code() == Code::kNotFound;
  return say_failed(command, usage ? kExitUsage : kExitFailed, {why.message()}, json);
}

void warn(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) fmt::print(stderr, "warning: {}\n", printable(line));
}

}  // namespace stormo::cli
