// Preloaded into a program: the thread that gets signal 40, its main thread, hangs for ever. All
// other threads go on, so that the process still answers.
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void hang(int signal) {
  // a signal of the process may come to any thread that does not block it
  if (syscall(SYS_gettid) != getpid()) {
    syscall(SYS_tgkill, getpid(), getpid(), signal);
    return;
  }
  for (;;) pause();
}

__attribute__((constructor)) static void arm(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = hang;
  sigemptyset(&action.sa_mask);  // it is still asked for its stack
  sigaction(40, &action, NULL);
}
