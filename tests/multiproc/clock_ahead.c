// Preloaded into a program: the wall clock of rank $CLOCK_AHEAD is five seconds ahead of that of
// the others, as on a host whose clock nobody sets.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char* ahead;

// Ranks get an environment of their own later.
__attribute__((constructor)) static void keep(void) {
  const char* given = getenv("CLOCK_AHEAD");
  if (given != NULL) ahead = strdup(given);
}

int clock_gettime(clockid_t clock, struct timespec* to) {
  const char* rank = getenv("STORMO_RANK");
  const int result = (int)syscall(SYS_clock_gettime, clock, to);
  if (clock == CLOCK_REALTIME && rank != NULL && ahead != NULL && strcmp(rank, ahead) == 0) {
    to->tv_sec += 5;
  }
  return result;
}
