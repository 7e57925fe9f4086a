// `stormo resize`: a running elastic job gets more ranks or fewer.
#include <fmt/format.h>
#include <poll.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include <cli/commands.h>
#include <cli/failure.h>
#include <cli/flag_values.h>
#include <cli/resize/job_socket.h>
#include <cli/top/job_file.h>
#include <stormo/launch/environment.h>

namespace stormo::cli {
namespace {

constexpr const char* kResizeExamples =
    "  stormo resize -n 2                the elastic job that this user has launched here\n"
    "  stormo resize 4711 -n 8           by the process of its launcher\n"
    "  stormo resize 127.0.0.1:9464 -n 8 --timeout 5m\n"
    "  stormo resize --add-host c:4      and four ranks on another host\n"
    "\n"
    "The last ranks leave after the present step, or others are started and join while the job\n"
    "trains. It waits until so many train. Jobs can change that are started with\n"
    "elastic.enabled=true. Exit codes: 0; 1 they do not train in time, which the job goes on\n"
    "trying, or it has ended; 2 there is no such job, or it cannot have so many ranks.";

constexpr Duration kAnswerWithin = std::chrono::seconds(5);
constexpr int kLookEveryMs = 50;

struct ResizeArguments {
  std::string job{}, hosts{}, timeout = "60s";
  std::optional<int> ranks{};
  bool no_wait = false, json = false;
};

Result<launch::JobSize> ask_launcher(const ElasticJob& job, const launch::SizeRequest& request) {
  Result<launch::JobSize> size =
      launch::ask_job(job.socket, request, Deadline::after(kAnswerWithin));
  if (size.ok()) return size;
  // there was a job
  if (size.status().code() == Code::kNotFound) return Status(Code::kPeerLost, "the job has ended");
  return size.status().within(fmt::format("the launcher of the job, process {}", job.launcher));
}

std::string ranks_text(int ranks) { return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s"); }

/// Until so many ranks train.
Result<launch::JobSize> wait_for_ranks(const ElasticJob& job, int ranks, Deadline by) {
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(launch::JobSize size, ask_launcher(job, {}));
    if (size.is_reached && size.ranks == ranks) return size;
    if (size.ranks != ranks) {
      return Status(Code::kCancelled,
                    fmt::format("the job is to have {} now: somebody else has asked for that, or a "
                                "rank has left it for good",
                                ranks_text(size.ranks)));
    }
    if (by.expired()) {
      return Status(Code::kDeadlineExceeded,
                    fmt::format("{} train{} by now; the job goes on trying to have {}",
                                ranks_text(size.members), size.members == 1 ? "s" : "", ranks));
    }
    ::poll(nullptr, 0, kLookEveryMs);
  }
}

void say(const ResizeArguments& a, const ElasticJob& job, const launch::JobSize& size, int before,
         Duration took) {
  if (a.json) {
    const nlohmann::ordered_json all{{"job", job.launcher},        {"before", before},
                                     {"ranks", size.ranks},        {"training", size.members},
                                     {"epoch", size.epoch},        {"done", size.is_reached},
                                     {"seconds", to_seconds(took)}};
    fmt::print("{}\n", all.dump());
  } else if (!size.is_reached) {
    fmt::print("the job is to have {} instead of {}\n", ranks_text(size.ranks), before);
  } else if (before == size.ranks) {
    fmt::print("the job has {} already\n", ranks_text(size.ranks));
  } else {
    fmt::print("{} train{} since epoch {} instead of {}, after {:.2f} s\n", ranks_text(size.ranks),
               size.ranks == 1 ? "s" : "", size.epoch, before, to_seconds(took));
  }
}

Result<int> resize(const ResizeArguments& a) {
  Wrong wrong;
  const auto timeout = read_duration("--timeout", a.timeout, wrong);
  if (a.ranks && *a.ranks < 1) {
    wrong.push_back(
        fmt::format("-n {}: at least 1; SIGTERM for its launcher ends a job", *a.ranks));
  }
  if (!a.ranks && a.hosts.empty()) {
    wrong.emplace_back("give the number of ranks, -n N, or other hosts, --add-host HOST:SLOTS");
  }
  STORMO_RETURN_IF_ERROR(as_status(wrong));
  const launch::EnvironmentReader read = launch::process_environment();
  STORMO_ASSIGN_OR_RETURN(const ElasticJob job,
                          choose_elastic(a.job, elastic_jobs(read), jobs_of_host(read)));
  const TimePoint began = RealClock().now();
  STORMO_ASSIGN_OR_RETURN(launch::JobSize size,
                          ask_launcher(job, {.ranks = a.ranks.value_or(0), .hosts = a.hosts}));
  if (!size.refused.empty()) return invalid_argument(size.refused);
  const int before = size.before;
  if (!a.no_wait) {
    const Deadline by =
        *timeout == Duration::zero() ? Deadline::never() : Deadline::after(*timeout);
    STORMO_ASSIGN_OR_RETURN(size, wait_for_ranks(job, size.ranks, by));
  }
  say(a, job, size, before, RealClock().now() - began);
  return kExitOk;
}

void resize_flags(CLI::App& command, ResizeArguments& a) {
  command.add_option("job", a.job,
                     "Process of the job's launcher, or its HOST:PORT as\n`stormo top` names it; "
                     "without it the one of this\nuser that was launched on this host");
  command.add_option(
      "-n,--ranks", a.ranks,
      "How many ranks are to train; without it one more for\neach slot of --add-host");
  command.add_option("--add-host", a.hosts,
                     "Hosts that the job gets, with slots, as in -H: c:4,d:4");
  command.add_option("--timeout", a.timeout, "How long to wait until they do; 0s: without limit")
      ->capture_default_str();
  command.add_flag("--no-wait", a.no_wait, "Only ask for it");
  command.add_flag("--json", a.json, "The outcome as one JSON object on stdout");
}

int run_resize(const ResizeArguments& a) {
  const Result<int> code = resize(a);
  return code.ok() ? *code : fail("resize", code.status());
}

}  // namespace

void add_resize_command(CLI::App& app, Invocation& invocation) {
  add_command<ResizeArguments>(app, invocation, "resize",
                               "Give a running elastic job more ranks or fewer", kResizeExamples,
                               resize_flags, run_resize);
}

}  // namespace stormo::cli
