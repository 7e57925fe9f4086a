// While Python's main thread waits in C++ it runs no handlers of signals, and Python's handler in C
// only notes the signal. Behind it stands one that also wakes a thread. This ends what the main
// thread waits for; then Python raises KeyboardInterrupt.
#include "python/interrupts.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <csignal>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <thread>

#include <torch/csrc/utils/pybind.h>

#include <stormo/c10d/blocking_call.h>
#include <stormo/c10d/work.h>

namespace stormo::python {
namespace {

/// An operation that ends by itself in this time needs no help.
constexpr auto kPatience = std::chrono::milliseconds(100);
/// Who runs no handlers for so many times is waiting for a Future, if it has one.
constexpr int kLooksBeforeFutures = 5;

int interrupts = -1;  // an eventfd that counts them
pid_t own_process = -1;
struct sigaction pythons;
std::atomic<bool> is_awake{false};  // Python's main thread has run what was pending for it

void note_interrupt(int signal) {
  const int before = errno;
  pythons.sa_handler(signal);
  const std::uint64_t one = 1;
  // a forked child has the parent's eventfd
  if (getpid() == own_process) static_cast<void>(!write(interrupts, &one, sizeof one));
  errno = before;
}

/// Python installs its handler again whenever a program calls signal.signal().
void stand_behind_python() {
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
      now.sa_handler != pythons.sa_handler) {
    return;
  }
  now.sa_handler = &note_interrupt;
  sigaction(SIGINT, &now, nullptr);
}

/// Whether Python will raise KeyboardInterrupt.
bool is_default() {
  const py::gil_scoped_acquire gil;
  const auto signals = py::module_::import("signal");
  return signals.attr("getsignal")(SIGINT).is(signals.attr("default_int_handler"));
}

int wake(void*) {
  is_awake = true;
  return 0;
}

/// Python's main thread runs handlers of signals, and then what is pending for it, as soon as it
/// is in no function of C++.
void end_what_waits() {
  is_awake = false;
  if (Py_IsInitialized() == 0 || Py_AddPendingCall(&wake, nullptr) != 0) return;
  const Status cause(Code::kInterrupted, "KeyboardInterrupt (Ctrl-C)");
  for (int looks = 0;;) {
    const std::uint64_t call = c10d::BlockingCall::current();
    std::this_thread::sleep_for(kPatience);
    if (is_awake || Py_IsInitialized() == 0) return;
    if (call != 0 && c10d::BlockingCall::current() == call) {
      if (is_default()) c10d::BlockingCall::interrupt(call, cause);
      return;
    }
    looks = call == 0 ? looks + 1 : 0;
    if (looks >= kLooksBeforeFutures && is_default()) c10d::interrupt_futures(cause);
  }
}

void end_operations() {
  std::uint64_t count = 0;
  while (read(interrupts, &count, sizeof count) > 0 || errno == EINTR) end_what_waits();
}

}  // namespace

void check_signals() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void end_operations_by_interrupts() {
  c10d::set_interrupt_check(&check_signals);
  if (sigaction(SIGINT, nullptr, &pythons) != 0 || (pythons.sa_flags & SA_SIGINFO) != 0 ||
      pythons.sa_handler == SIG_DFL || pythons.sa_handler == SIG_IGN) {
    return;  // not Python's
  }
  own_process = getpid();
  interrupts = eventfd(0, EFD_CLOEXEC);
  if (interrupts < 0) return;
  std::thread(end_operations).detach();
  c10d::BlockingCall::allow_interrupts(&stand_behind_python);
}

}  // namespace stormo::python
