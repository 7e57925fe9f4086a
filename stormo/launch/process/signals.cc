#include <stormo/launch/process/signals.h>

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace stormo::launch {

Result<std::unique_ptr<SignalReader>> SignalReader::create() {
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU})
    if (!is_ignored(s)) ::sigaddset(&handled, s);  // blocked, it would be kept for the reader
  transport::Descriptor fd(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return errno_error("signalfd");
  std::unique_ptr<SignalReader> reader(new SignalReader);
  reader->fd_ = std::move(fd);
  ::pthread_sigmask(SIG_BLOCK, &handled, &reader->before_);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &reader->pipe_before_);
  ::sigaction(SIGXFSZ, &ignore, &reader->size_before_);
  // Ignored by a parent, it would stay so, and the kernel would reap children by itself.
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &usual, &reader->child_before_);
  return reader;
}

SignalReader::~SignalReader() {
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::sigaction(SIGXFSZ, &size_before_, nullptr);
  ::sigaction(SIGCHLD, &child_before_, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

bool end_is_wanted() {
  sigset_t pending;
  ::sigemptyset(&pending);
  ::sigpending(&pending);
  return ::sigismember(&pending, SIGINT) == 1 || ::sigismember(&pending, SIGTERM) == 1 ||
         ::sigismember(&pending, SIGHUP) == 1;
}

int SignalReader::next() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace stormo::launch
