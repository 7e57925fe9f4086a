// Preloaded into a program: the thread that main() runs in computes longer, as on a slower core. $SLOW_COMPUTE has for
// each rank by how many percent, such as "0,30". A timer of the thread's own processor time interrupts it, and then it
// rests: while it computes, never while it waits, and in proportion however busy the machine is.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kEveryMs = 5 };
static double rested;  // seconds

static double now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double share(void) {
  const char *rank = getenv("STORMO_RANK"), *shares = getenv("SLOW_COMPUTE");
  if (rank == NULL) return 0;
  for (int skip = atoi(rank); shares != NULL && skip > 0; --skip) {
    shares = strchr(shares, ',');
    if (shares != NULL) ++shares;
  }
  return shares == NULL ? 0 : atoi(shares) / 100.0;
}

static void rest(int signal) {
  (void)signal;
  const int before = errno;
  const double began = now(CLOCK_MONOTONIC);
  const double more = share() * now(CLOCK_THREAD_CPUTIME_ID) - rested;
  if (more > 0) {
    const struct timespec time = {(time_t)more, (long)((more - (double)(time_t)more) * 1e9)};
    nanosleep(&time, NULL);
    rested += now(CLOCK_MONOTONIC) - began;
  }
  errno = before;
}

/// A forked process has no timers of its parent.
static void start(void) {
  struct sigaction action = {.sa_handler = rest, .sa_flags = SA_RESTART};
  sigaction(SIGPROF, &action, NULL);
  struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGPROF};
  event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
  timer_t timer;
  if (timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) != 0) abort();
  const struct timespec every = {0, kEveryMs * 1000000L};
  const struct itimerspec times = {every, every};
  timer_settime(timer, 0, &times, NULL);
}

__attribute__((constructor)) static void begin(void) {
  pthread_atfork(NULL, NULL, start);
  start();
}
