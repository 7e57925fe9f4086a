#include <cli/torch_program.h>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include <cli/build_facts.h>
#include <cli/commands.h>
#include <cli/own_program.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/job/local_ranks.h>
#include <stormo/launch/openmp_waits.h>
#include <stormo/launch/process/spawn.h>

namespace stormo::cli {
namespace {

namespace fs = std::filesystem;

/// What to execute: the program beside this one in a build; where it is installed, the script that
/// finds the libtorch of this machine for it.
Result<std::string> find_train_program() {
  if (!kHasTorch) {
    return invalid_argument(
        "this program was built without libtorch and cannot train; build it with 'cmake --preset "
        "release' (./quickstart fetches libtorch)");
  }
  STORMO_ASSIGN_OR_RETURN(const fs::path own, own_program());
  const fs::path built = own.parent_path() / kTrainProgram;
  const fs::path installed = own.parent_path().parent_path() / kTrainFolder;
  const auto runs = [](const fs::path& file) { return ::access(file.c_str(), X_OK) == 0; };
  if (runs(built)) return built.string();
  if (runs(installed / kTrainProgram) && runs(installed / kStartScript))
    return (installed / kStartScript).string();
  return invalid_argument(
      fmt::format("this needs libtorch and the program {0}, which is missing: it belongs beside "
                  "this one as {1}, or into {2} together with {3}; build or install all of Stormo "
                  "again",
                  kTrainProgram, built.string(), installed.string(), kStartScript));
}

}  // namespace

Status become_train_program() {
  STORMO_ASSIGN_OR_RETURN(std::string program, find_train_program());
  STORMO_ASSIGN_OR_RETURN(std::vector<std::string> arguments, own_arguments());
  std::vector<char*> words = {program.data()};
  for (std::string& word : arguments) words.push_back(word.data());
  words.push_back(nullptr);
  launch::set_openmp_waits();
  std::fflush(nullptr);
  ::execv(program.c_str(), words.data());
  return errno_error("execute " + program);
}

int hand_over() {
  fmt::print(stderr, "stormo: {}\n", become_train_program().message());
  return kExitUsage;
}

std::shared_ptr<launch::ForkServer> load_train_program(const std::vector<std::string>& arguments,
                                                       int ranks) {
  const auto file = find_train_program();
  const pid_t group = ::getpgrp();  // 0: that of a process of another namespace, not to be entered
  if (!file.ok() || group == 0) return nullptr;
  launch::set_openmp_waits();
  launch::HostJob job;
  job.forks = true;
  job.local_size = ranks;
  job.environment = launch::own_environment();
  job.program = {*file};
  job.program.insert(job.program.end(), arguments.begin(), arguments.end());
  if (!launch::loads_program_once(job)) return nullptr;
  return launch::load_program(job, *file, group, launch::read_cpus());
}

Result<Answer> ask_train_program(std::vector<std::string> arguments, launch::ForkServer* loaded) {
  launch::Child child;
  STORMO_ASSIGN_OR_RETURN(child.file, find_train_program());
  child.argv = std::move(arguments);
  child.argv.insert(child.argv.begin(), child.file);
  launch::set_openmp_waits();
  child.environment = launch::own_environment();
  STORMO_ASSIGN_OR_RETURN(launch::Pipe out, launch::make_pipe());
  child.output = out.write.get();
  STORMO_ASSIGN_OR_RETURN(const pid_t pid,
                          loaded != nullptr ? loaded->spawn(child) : launch::spawn(child));
  out.write.reset();
  Answer answer;
  std::array<char, 4096> buffer{};
  for (ssize_t n = 1; n != 0;) {
    n = ::read(out.read.get(), buffer.data(), buffer.size());
    if (n < 0 && errno != EINTR) return errno_error("read from " + child.file);
    if (n > 0) answer.output.append(buffer.data(), static_cast<std::size_t>(n));
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  launch::forget_child(pid);
  if (WIFEXITED(status)) answer.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) answer.signal = WTERMSIG(status);
  return answer;
}

}  // namespace stormo::cli
