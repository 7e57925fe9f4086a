#include <stormo/launch/process/spawn.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include <stormo/base/text.h>
#include <stormo/launch/process/orphans.h>
#include <stormo/launch/process/place.h>
#include <stormo/launch/process/signals.h>

namespace stormo::launch {
namespace {

std::vector<pid_t>& started_children() {
  static std::vector<pid_t> children;
  return children;
}

/// Everything below runs between vfork and exec, on memory of the parent, where only system calls
/// are safe. What fails is told over a pipe that a successful exec closes.
///
/// SIGPIPE, SIGXFSZ and SIGCHLD are ignored by this program itself, not by whoever started it.
void reset_signals() {
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  for (int s = 1; s < NSIG; ++s) {
    if (s == SIGKILL || s == SIGSTOP) continue;
    const bool ours = s == SIGPIPE || s == SIGXFSZ || s == SIGCHLD;
    if (ours || !is_ignored(s)) ::sigaction(s, &usual, nullptr);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// The arguments of the child, laid out before it is started.
struct Prepared {
  std::vector<char*> argv;
  std::vector<char*> environment;
  Place place;
  pid_t parent = 0;
};

[[noreturn]] void become(const Child& child, const Prepared& prepared, int pipe) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != prepared.parent) ::_exit(127);
  reset_signals();
  if (const char* failed = take_place(prepared.place)) give_up(pipe, failed);
  ::syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC);
  if (child.inherited) ::fcntl(*child.inherited, F_SETFD, 0);
  ::execve(child.file.c_str(), prepared.argv.data(), prepared.environment.data());
  give_up(pipe, "execute");
}

/// The process, or -1. Without a copy of this one's memory: the caller stands still until the child
/// has executed its program or given up. No handler of this process may run in the child.
[[gnu::noinline]] pid_t start(const Child& child, const Prepared& prepared, int pipe) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::vfork();
  if (pid == 0) become(child, prepared, pipe);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  // execve takes pointers to non-const, and changes nothing.
  for (const std::string& t : texts) out.push_back(const_cast<char*>(t.c_str()));
  out.push_back(nullptr);
  return out;
}

/// The last act of a process of the guard. `group`: that of the job; 0: that of this process.
[[noreturn]] void kill_job(const std::string& mark, pid_t group) {
  // Some may start others while they are looked for.
  constexpr int kRounds = 100;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<pid_t> found = processes_marked(mark);
    for (const pid_t pid : found) ::kill(pid, SIGKILL);
    if (found.empty()) break;
  }
  ::kill(-group, SIGKILL);
  ::_exit(0);
}

/// A process that ends the job when nobody holds the other end of `lifeline` any more.
Result<pid_t> fork_guard(const Pipe& lifeline, const std::string& mark, pid_t group) {
  const pid_t pid = ::fork();
  if (pid < 0) return errno_error("start a guard process");
  if (pid == 0) {
    ::setpgid(0, 0);
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    // Only the pipe stays open: whoever reads the launcher's output must see its end.
    if (::dup2(lifeline.read.get(), STDIN_FILENO) < 0) ::_exit(1);
    ::syscall(SYS_close_range, 1u, ~0u, 0);
    ::prctl(PR_SET_NAME, kGuardName);
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) > 0) {
    }
    kill_job(mark, group);
  }
  ::setpgid(pid, pid);
  note_child(pid);
  return pid;
}

/// Ends a child.
void end_child(pid_t& pid) {
  if (pid <= 0) return;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  forget_child(std::exchange(pid, 0));
}

}  // namespace

bool is_started_child(pid_t pid) {
  const std::vector<pid_t>& all = started_children();
  return std::find(all.begin(), all.end(), pid) != all.end();
}

void note_child(pid_t pid) { started_children().push_back(pid); }
void forget_child(pid_t pid) { std::erase(started_children(), pid); }

Result<Pipe> make_pipe() {
  std::array<int, 2> fds{};
  if (::pipe2(fds.data(), O_CLOEXEC) != 0) return errno_error("pipe");
  return Pipe{Descriptor(fds[0]), Descriptor(fds[1])};
}

Result<pid_t> spawn(const Child& child) {
  STORMO_ASSIGN_OR_RETURN(Pipe problems, make_pipe());
  const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) return errno_error("open /dev/null");
  const Prepared prepared{.argv = pointers(child.argv),
                          .environment = pointers(child.environment),
                          .place = {.group = child.group,
                                    .bind = !child.cpus.empty(),
                                    .cpus = to_cpu_set(child.cpus),
                                    .input = child.input >= 0 ? child.input : null.get(),
                                    .output = child.output,
                                    .error = child.error},
                          .parent = ::getpid()};
  const pid_t pid = start(child, prepared, problems.write.get());
  if (pid < 0) return errno_error(kNoProcess);
  problems.write.reset();
  Outcome problem;
  if (!read_outcome(problems.read.get(), problem)) {
    note_child(pid);
    return pid;
  }
  ::waitpid(pid, nullptr, 0);
  errno = problem.error;
  return errno_error(fmt::format("{} '{}'", problem.what.data(), child.file));
}

Result<Descriptor> open_process(pid_t pid) {
  // By number: glibc 2.36 declares the function for C only.
  Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process.valid()) return errno_error("pidfd_open; Linux 5.3 or newer is needed");
  return process;
}

Result<std::string> find_program(const std::string& program, std::string_view search_path) {
  const auto runnable = [](const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
           ::access(path.c_str(), X_OK) == 0;
  };
  if (program.find('/') != std::string::npos) {
    if (runnable(program)) return program;
    if (::access(program.c_str(), F_OK) != 0)
      return Status(Code::kInvalidArgument, fmt::format("program '{}' does not exist", program));
    return invalid_argument(fmt::format(
        "program '{}' is not an executable file (chmod +x, or name its interpreter)", program));
  }
  for (const std::string_view folder : split(program.empty() ? "" : search_path, ':')) {
    // an empty entry means this folder
    const std::string path = fmt::format("{}/{}", folder.empty() ? "." : folder, program);
    if (runnable(path)) return path;
  }
  return invalid_argument(fmt::format(
      "program '{}' is in no folder of PATH; write ./{} for one in this folder", program, program));
}

std::string absolute_folders(std::string_view search_path) {
  std::string out;
  for (const std::string_view folder : split(search_path, ':')) {
    if (folder.starts_with('/')) out += (out.empty() ? "" : ":") + std::string(folder);
  }
  return out;
}

Result<Guard> Guard::start() {
  STORMO_ASSIGN_OR_RETURN(Pipe pipe, make_pipe());
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) return errno_error("getrandom");
  Guard guard({}, fmt::format("STORMO_GUARD={:016x}", number));
  STORMO_ASSIGN_OR_RETURN(guard.pid_, fork_guard(pipe, guard.mark_, 0));
  STORMO_ASSIGN_OR_RETURN(guard.second_, fork_guard(pipe, guard.mark_, guard.pid_));
  guard.lifeline_ = std::move(pipe.write);
  return guard;
}

Guard::Guard(Guard&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      second_(std::exchange(other.second_, 0)),
      lifeline_(std::move(other.lifeline_)),
      mark_(std::move(other.mark_)) {}

Guard::~Guard() { kill_all(); }

void Guard::signal(int signal) const {
  // The guard blocks all that can be blocked; SIGKILL would end it before the others.
  if (pid_ > 0) ::kill(-pid_, signal);
}

void Guard::kill_all() {
  end_child(second_);  // it must not take the end of the pipe for that of its creator
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);
  lifeline_.reset();
  end_child(pid_);
}

}  // namespace stormo::launch
