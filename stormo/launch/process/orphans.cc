#include <stormo/launch/process/orphans.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

#include <stormo/base/proc.h>
#include <stormo/launch/process/spawn.h>

namespace stormo::launch {
namespace {

pid_t parent_of(pid_t pid) {
  return process_state(fmt::format("/proc/{}", pid)).value_or(ProcessState{}).parent;
}

bool has_mark(pid_t pid, const std::string& assignment) {
  std::ostringstream environment;
  environment << '\0' << std::ifstream(fmt::format("/proc/{}/environ", pid)).rdbuf();
  return environment.view().find('\0' + assignment + '\0') != std::string::npos;
}

/// Asks the kernel: a look through /proc costs a file for each process of the machine.
bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 || errno != ECHILD;
}

std::vector<pid_t> own_children() {
  std::vector<pid_t> out;
  if (!has_children()) return out;
  const pid_t self = ::getpid();
  for (const pid_t pid : numbers_in("/proc"))
    if (parent_of(pid) == self) out.push_back(pid);
  return out;
}

}  // namespace

std::vector<pid_t> processes_marked(const std::string& assignment) {
  std::vector<pid_t> out;
  for (const pid_t pid : numbers_in("/proc"))
    if (has_mark(pid, assignment)) out.push_back(pid);
  return out;
}

Result<std::unique_ptr<Orphans>> Orphans::adopt(EventLoop& loop) {
  std::unique_ptr<Orphans> orphans(new Orphans(loop));
  Orphans* self = orphans.get();
  self->children_before_ = own_children();
  ::prctl(PR_GET_CHILD_SUBREAPER, &self->subreaper_before_);
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return errno_error("adopt orphans");
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  ::pthread_sigmask(SIG_BLOCK, &child, &self->mask_before_);
  self->signals_ = Descriptor(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!self->signals_.valid()) return errno_error("signalfd");
  STORMO_RETURN_IF_ERROR(loop.watch_readable(self->signals_.get(), [self] { self->reap(); }));
  return orphans;
}

Orphans::~Orphans() {
  if (signals_.valid()) loop_.forget(signals_.get());
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  ::prctl(PR_SET_CHILD_SUBREAPER, subreaper_before_);
}

void Orphans::reap() {
  signalfd_siginfo signal{};
  while (::read(signals_.get(), &signal, sizeof signal) > 0) {
  }
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    // Whoever has started it waits for it; a later signal comes back to those behind it.
    if (!is_orphan(info.si_pid)) return;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

bool Orphans::is_orphan(pid_t child) const {
  return !is_started_child(child) && std::find(children_before_.begin(), children_before_.end(),
                                               child) == children_before_.end();
}

std::vector<pid_t> Orphans::find() const {
  std::vector<pid_t> out = own_children();
  std::erase_if(out, [this](pid_t pid) { return !is_orphan(pid); });
  return out;
}

std::vector<pid_t> Orphans::end(Deadline by) {
  while (true) {
    // The children of those that end become children of this process: until there are no more.
    std::vector<pid_t> left = find();
    std::erase_if(left, [](pid_t pid) {
      return ::waitpid(pid, nullptr, WNOHANG) == pid || has_mark(pid, kSparedMark);
    });
    if (left.empty() || by.expired()) return left;
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    const Result<Descriptor> first = open_process(left.front());
    if (!first.ok()) continue;
    pollfd p{first->get(), POLLIN, 0};
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(by.remaining()).count();
    ::poll(&p, 1, static_cast<int>(std::min<std::int64_t>(wait, 1000)));
  }
}

}  // namespace stormo::launch
