// Preloaded into a program: each read of a file at a position takes longer, as from a disk that
// others use. $SLOW_READS_US has for each rank by how much, such as "0,3000".
#define _GNU_SOURCE
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static void delay(void) {
  const char *rank = getenv("STORMO_RANK"), *delays = getenv("SLOW_READS_US");
  if (rank == NULL) return;
  for (int skip = atoi(rank); delays != NULL && skip > 0; --skip) {
    delays = strchr(delays, ',');
    if (delays != NULL) ++delays;
  }
  if (delays == NULL) return;
  const struct timespec longer = {0, 1000L * atoi(delays)};
  ppoll(NULL, 0, &longer, NULL);
}

#define PREAD(name)                                            \
  ssize_t name(int fd, void* to, size_t bytes, off_t offset) { \
    delay();                                                   \
    return syscall(SYS_pread64, fd, to, bytes, offset);        \
  }
PREAD(pread)
PREAD(pread64)
