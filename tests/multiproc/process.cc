#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

namespace stormo::testing {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

int milliseconds_until(SteadyTime by) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(by - std::chrono::steady_clock::now());
  return static_cast<int>(std::max<std::int64_t>(0, left.count()));
}

}  // namespace

Process::Process(std::vector<std::string> argv, const std::vector<std::string>& variables) {
  static std::atomic<int> next{0};
  mark_ = "STORMO_TEST_MARK=" + std::to_string(::getpid()) + "." + std::to_string(++next);
  std::vector<std::string> environment;
  for (char** e = environ; *e; ++e) environment.emplace_back(*e);
  for (const std::string& variable : variables) {  // the last of a name is the one that counts
    const std::string name = variable.substr(0, variable.find('=') + 1);
    std::erase_if(environment, [&](const std::string& e) { return e.starts_with(name); });
    environment.push_back(variable);
  }
  environment.push_back(mark_);
  std::vector<char*> args;
  for (std::string& a : argv) args.push_back(a.data());
  args.push_back(nullptr);
  std::vector<char*> env;
  for (std::string& e : environment) env.push_back(e.data());
  env.push_back(nullptr);

  int out[2];
  int err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) return;
  pid_ = ::fork();
  if (pid_ == 0) {
    // A test program that is killed must not leave jobs behind.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    ::execve(args[0], args.data(), env.data());
    ::_exit(127);
  }
  ::close(out[1]);
  ::close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
}

Process::~Process() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_fd_ >= 0) ::close(out_fd_);
  if (err_fd_ >= 0) ::close(err_fd_);
}

void Process::signal(int signal) const {
  ::kill(pid_, signal);
  siginfo_t stopped{};
  if (signal == SIGSTOP)
    ::waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WEXITED | WNOWAIT);
}

bool Process::read_some(SteadyTime by) {
  pollfd fds[2] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
  if (::poll(fds, 2, milliseconds_until(by)) <= 0) return false;
  for (int i = 0; i < 2; ++i) {
    if (fds[i].revents == 0) continue;
    char buffer[65536];
    const ssize_t n = ::read(fds[i].fd, buffer, sizeof buffer);
    int& fd = i == 0 ? out_fd_ : err_fd_;
    if (n > 0) {
      (i == 0 ? out_ : err_).append(buffer, static_cast<std::size_t>(n));
    } else {
      ::close(fd);
      fd = -1;
    }
  }
  return true;
}

bool Process::wait_for_output(const std::string& text, int times) {
  const SteadyTime by = std::chrono::steady_clock::now() + kGenerous;
  while (count(out_, text) < times)
    if ((out_fd_ < 0 && err_fd_ < 0) || !read_some(by)) return false;
  return true;
}

int Process::wait(std::chrono::nanoseconds at_most) {
  const SteadyTime by = std::chrono::steady_clock::now() + at_most;
  while (out_fd_ >= 0 || err_fd_ >= 0)
    if (!read_some(by)) return -1;
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_) return -1;
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool Process::wait_until_full(pid_t pid) const {
  const std::string output = "/proc/" + std::to_string(pid == 0 ? pid_ : pid) + "/fd/1";
  const SteadyTime by = std::chrono::steady_clock::now() + kGenerous;
  while (std::chrono::steady_clock::now() < by) {
    const int writer = ::open(output.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    pollfd p{writer, POLLOUT, 0};
    const bool full = writer >= 0 && ::poll(&p, 1, 0) == 0;
    if (writer >= 0) ::close(writer);
    if (full) return true;
    std::this_thread::yield();
  }
  return false;
}

void Process::read_a_page() {
  char buffer[4096];
  pollfd p{out_fd_, POLLIN, 0};
  if (::poll(&p, 1, 0) <= 0) return;
  const ssize_t n = ::read(out_fd_, buffer, sizeof buffer);
  if (n > 0) out_.append(buffer, static_cast<std::size_t>(n));
}

int Process::wait_unread(std::chrono::nanoseconds at_most) {
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  pollfd p{process, POLLIN, 0};
  const int ended = ::poll(&p, 1, milliseconds_until(std::chrono::steady_clock::now() + at_most));
  ::close(process);
  return ended == 1 ? wait() : -1;
}

namespace {

/// Whether any process has given back its memory, and with it its environment, but not yet all of
/// its files.
bool any_process_ends() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string status = read_proc(entry.path() / "status");
    const bool is_of_kernel = status.find("\nPPid:\t0\n") != std::string::npos ||
                              status.find("\nPPid:\t2\n") != std::string::npos;
    const bool has_ended = status.empty() || status.find("\nState:\tZ") != std::string::npos ||
                           status.find("\nState:\tX") != std::string::npos;
    if (!is_of_kernel && !has_ended && status.find("\nVmSize:") == std::string::npos) return true;
  }
  return false;
}

}  // namespace

std::vector<Process::Relative> Process::relatives() const {
  std::vector<Relative> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string environment = read_proc(entry.path() / "environ");
    if (environment.find(mark_ + '\0') == std::string::npos) continue;
    Relative r;
    r.pid = std::stoi(name);
    r.command = read_proc(entry.path() / "cmdline");
    for (char& c : r.command)
      if (c == '\0') c = ' ';
    std::istringstream status(read_proc(entry.path() / "status"));
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("PPid:")) r.parent = std::stoi(line.substr(5));
    found.push_back(r);
  }
  return found;
}

pid_t Process::rank(int rank, const std::string& program) const {
  const std::string mine = "STORMO_RANK=" + std::to_string(rank) + '\0';
  for (const Relative& r : relatives()) {
    const bool runs_it = r.command.starts_with(program);
    if (runs_it &&
        read_proc("/proc/" + std::to_string(r.pid) + "/environ").find(mine) != std::string::npos) {
      return r.pid;
    }
  }
  return -1;
}

bool Process::wait_until_all_gone(std::chrono::nanoseconds at_most) const {
  const SteadyTime by = std::chrono::steady_clock::now() + at_most;
  while (!relatives().empty()) {
    if (std::chrono::steady_clock::now() >= by) return false;
    // The end of processes that are not our children cannot be waited for.
    std::this_thread::yield();
  }
  while (any_process_ends()) std::this_thread::yield();
  return true;
}

Outcome run_to_end(const std::vector<std::string>& argv,
                   const std::vector<std::string>& variables) {
  const SteadyTime start = std::chrono::steady_clock::now();
  Process process(argv, variables);
  Outcome outcome;
  outcome.status = process.wait();
  outcome.took = std::chrono::steady_clock::now() - start;
  outcome.out = process.out();
  outcome.err = process.err();
  return outcome;
}

std::string read_proc(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();  // unlike iterators, turns a failing read into a bad stream
  return out.str();
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}

}  // namespace stormo::testing
