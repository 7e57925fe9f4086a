// Preloaded into a program: the thread that gets signal 40, its main thread, hangs for ever. All
// other threads go on, so that the process still answers.
#include <signal.h>
#include <string.h>
#include <unistd.h>

static void hang(int signal) {
  (void)signal;
  for (;;) pause();
}

__attribute__((constructor)) static void arm(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = hang;
  sigemptyset(&action.sa_mask);  // it is still asked for its stack
  sigaction(40, &action, NULL);
}
