#include <stormo/transport/shm/peer_process.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>

#include <stormo/base/proc.h>

namespace stormo::transport {
namespace {

std::optional<ProcessState> state_of(pid_t pid) {
  return process_state(fmt::format("/proc/{}", pid));
}

std::uint64_t own_pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

// The C library's wrappers are newer than the systems that are supported.
int open_process(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }
int send_signal(int process, int signal) {
  return static_cast<int>(::syscall(SYS_pidfd_send_signal, process, signal, nullptr, 0));
}

}  // namespace

ProcessName ProcessName::own() {
  const auto state = state_of(::getpid());
  const std::uint64_t pid_namespace = own_pid_namespace();
  if (!state || pid_namespace == 0) return {};
  return {::getpid(), pid_namespace, state->started};
}

PeerProcess::PeerProcess(const ProcessName& name) : name_(name) {
  if (name.pid == 0 || name.pid_namespace != own_pid_namespace()) return;
  // first hold it, then see that it is the one
  Descriptor held(open_process(name.pid));
  const bool is_known = held.valid() || errno == ESRCH;
  const auto state = state_of(name.pid);
  is_gone_ = is_known && (!state || state->started != name.started);
  if (!is_gone_ && held.valid() && send_signal(held.get(), 0) == 0) process_ = std::move(held);
  wait(Duration::zero());
}

bool PeerProcess::is_stopped(bool or_traced) const {
  const auto state = state_of(name_.pid);
  return !is_gone_ && process_.valid() && state && state->started == name_.started &&
         (state->letter == 'T' || (or_traced && state->letter == 't'));
}

void PeerProcess::end() {
  if (process_.valid()) send_signal(process_.get(), SIGKILL);
}

void PeerProcess::wait(Duration at_most) {
  pollfd p{process_.get(), POLLIN, 0};
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(at_most).count();
  const int ready = ::poll(&p, 1, static_cast<int>(ms));
  if (ready > 0 && (p.revents & POLLIN) != 0) is_gone_ = true;
}

}  // namespace stormo::transport
