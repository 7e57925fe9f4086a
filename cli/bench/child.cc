#include <cli/bench/child.h>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

#include <stormo/launch/environment.h>
#include <stormo/launch/messages/host_job.h>
#include <stormo/launch/process/signals.h>
#include <stormo/launch/process/spawn.h>

namespace stormo::cli {
namespace {

constexpr int kSilentMilliseconds = 10 * 60 * 1000;

std::vector<std::string> environment_with(const ChildCommand& command) {
  std::vector<std::string> all = launch::without_placement(launch::own_environment());
  for (std::string& text : all) {
    for (const std::string_view name : {"PATH=", "PYTHONPATH="})
      if (text.starts_with(name))
        text = std::string(name) + launch::absolute_folders(text.substr(name.size()));
  }
  for (const auto& [name, value] : command.environment) {
    std::erase_if(all, [&](const std::string& text) { return text.starts_with(name + "="); });
    all.push_back(name + "=" + value);
  }
  return all;
}

/// False at the end of the stream.
bool read_some(int fd, std::string& into) {
  std::array<char, 16384> buffer{};
  ssize_t n = 0;
  do n = ::read(fd, buffer.data(), buffer.size());
  while (n < 0 && errno == EINTR);
  if (n > 0) into.append(buffer.data(), static_cast<std::size_t>(n));
  return n > 0;
}

/// Reads both streams to their ends.
Status collect(launch::Pipe& out, launch::Pipe& err, launch::SignalReader& signals,
               ChildOutcome& outcome) {
  std::array<pollfd, 3> waiting = {pollfd{out.read.get(), POLLIN, 0},
                                   pollfd{err.read.get(), POLLIN, 0},
                                   pollfd{signals.descriptor(), POLLIN, 0}};
  while (waiting[0].fd >= 0 || waiting[1].fd >= 0) {
    const int ready = ::poll(waiting.data(), waiting.size(), kSilentMilliseconds);
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return errno_error("poll");
    if (ready == 0) return Status(Code::kDeadlineExceeded, "silent for ten minutes");
    if (waiting[2].revents != 0 && signals.next() != 0)
      return Status(Code::kInterrupted, "interrupted");
    if (waiting[0].revents != 0 && !read_some(waiting[0].fd, outcome.out)) waiting[0].fd = -1;
    if (waiting[1].revents != 0 && !read_some(waiting[1].fd, outcome.err)) waiting[1].fd = -1;
  }
  return {};
}

}  // namespace

Result<ChildOutcome> run_child(const ChildCommand& command) {
  STORMO_ASSIGN_OR_RETURN(const auto signals, launch::SignalReader::create());
  STORMO_ASSIGN_OR_RETURN(launch::Guard guard, launch::Guard::start());
  STORMO_ASSIGN_OR_RETURN(launch::Pipe out, launch::make_pipe());
  STORMO_ASSIGN_OR_RETURN(launch::Pipe err, launch::make_pipe());
  launch::Child child;
  child.argv = command.words;
  child.environment = environment_with(command);
  STORMO_ASSIGN_OR_RETURN(
      child.file,
      launch::find_program(command.words.front(), launch::value_of(child.environment, "PATH")));
  child.environment.push_back(guard.mark());
  child.output = out.write.get();
  child.error = err.write.get();
  child.group = guard.group();
  STORMO_ASSIGN_OR_RETURN(const pid_t pid, launch::spawn(child));
  out.write.reset();
  err.write.reset();

  ChildOutcome outcome;
  const Status collected = collect(out, err, *signals, outcome);
  if (!collected.ok()) {
    // launchers take their ranks with them when they may
    ::kill(pid, SIGTERM);
    if (!collect(out, err, *signals, outcome).ok()) guard.signal(SIGKILL);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  launch::forget_child(pid);
  guard.kill_all();
  STORMO_RETURN_IF_ERROR(collected);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

std::string tail_of(const std::string& text) {
  constexpr std::size_t kMost = 2000;
  std::string tail = text.size() <= kMost ? text : text.substr(text.size() - kMost);
  while (!tail.empty() && tail.back() == '\n') tail.pop_back();
  return tail;
}

}  // namespace stormo::cli
