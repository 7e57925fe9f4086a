// `stormo top`: how a running job gets on, in a terminal.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <cli/commands.h>
#include <cli/failure.h>
#include <cli/flag_values.h>
#include <cli/top/job_file.h>
#include <cli/top/picture.h>
#include <cli/top/target.h>
#include <cli/top/watch.h>
#include <stormo/launch/environment.h>
#include <stormo/observe/progress.h>

namespace stormo::cli {
namespace {

constexpr const char* kTopExamples =
    "  stormo top                        the job of this user that runs here, every second\n"
    "  stormo top 127.0.0.1:9464         as `stormo train --metrics` has printed it\n"
    "  stormo top node7:9464 --token secret\n"
    "  stormo top --once --json          one JSON object for programs\n"
    "\n"
    "q or Ctrl-C ends it. Jobs show themselves if they are started with --metrics. Where standard\n"
    "output is no terminal, it prints once. Exit codes: 0 also when the job has ended meanwhile;\n"
    "1 it does not answer; 2 there is no such job, or it may not be looked at.";

constexpr Duration kPatience = std::chrono::seconds(5);
constexpr Duration kLeastInterval = std::chrono::milliseconds(100);

struct TopArguments {
  std::string job{}, token{}, interval = "1s";
  bool once = false, json = false;
};

observe::TerminalStyle style_of_output() {
  winsize size{};
  const bool is_terminal = ::isatty(STDOUT_FILENO) != 0;
  const bool known = is_terminal && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  return observe::terminal_style(is_terminal, known ? size.ws_col : 0, std::getenv("NO_COLOR"),
                                 std::getenv("TERM"));
}

Result<Duration> interval_of(const TopArguments& a) {
  Wrong wrong;
  const std::optional<Duration> interval = read_duration("--interval", a.interval, wrong);
  if (interval && *interval < kLeastInterval) wrong.emplace_back("--interval: at least 100ms");
  STORMO_RETURN_IF_ERROR(as_status(wrong));
  return *interval;
}

Result<int> top(const TopArguments& a) {
  STORMO_ASSIGN_OR_RETURN(const Duration interval, interval_of(a));
  STORMO_ASSIGN_OR_RETURN(const Target target,
                          choose_job(a.job, a.token, jobs_of_host(launch::process_environment())));
  STORMO_ASSIGN_OR_RETURN(JobStatus job, ask(target, Deadline::after(kPatience)));
  if (a.json) {
    fmt::print("{}", to_json(job, target.name()));
    return kExitOk;
  }
  const observe::TerminalStyle style = style_of_output();
  if (style.live && !a.once) return watch(target, std::move(job), interval, style.color);
  const Window window{.columns = style.columns, .rows = 0, .color = style.color};
  for (const std::string& line : job_picture(job, target.name(), "", window)) {
    fmt::print("{}\n", line);
  }
  return kExitOk;
}

void top_flags(CLI::App& command, TopArguments& a) {
  command.add_option("job", a.job,
                     "HOST:PORT of the job, or its URL; without it the one of\nthis user that runs "
                     "on this host");
  command.add_option("--interval", a.interval, "How often to look")->capture_default_str();
  command.add_flag("--once", a.once, "Print once, and end");
  command.add_flag("--json", a.json, "Once, as one JSON object on stdout");
  command.add_option("--token", a.token,
                     "File with the token of the job: that of `stormo train\n--metrics-token`; "
                     "known of jobs on this host");
}

int run_top(const TopArguments& a) {
  const Result<int> code = top(a);
  return code.ok() ? *code : fail("top", code.status());
}

}  // namespace

void add_top_command(CLI::App& app, Invocation& invocation) {
  add_command<TopArguments>(app, invocation, "top", "Watch a running job in a terminal",
                            kTopExamples, top_flags, run_top);
}

}  // namespace stormo::cli
