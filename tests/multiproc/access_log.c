// Preloaded into a program: writes each opening of a file below $ACCESS_LOG_FOLDER, and each read
// of one, to $ACCESS_LOG, as lines "rank operation path offset bytes". What a rank has of data is
// what this log says, whatever the program says.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void note(const char* operation, int fd, long offset, long bytes) {
  const char *folder = getenv("ACCESS_LOG_FOLDER"), *log = getenv("ACCESS_LOG");
  const char* rank = getenv("STORMO_RANK");
  char link[64], path[PATH_MAX], line[PATH_MAX + 128];
  if (folder == NULL || log == NULL || fd < 0) return;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return;
  path[length] = 0;
  if (strncmp(path, folder, strlen(folder)) != 0) return;
  const int written = snprintf(line, sizeof line, "%s %s %s %ld %ld\n", rank ? rank : "none",
                               operation, path, offset, bytes);
  const int to = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT, 0600);
  if (to < 0 || write(to, line, (size_t)written) != written) abort();
  syscall(SYS_close, to);
}

static int opened(int fd) {
  note("open", fd, 0, 0);
  return fd;
}

// The mode is there only for files that may be created; an unused one does no harm.
#define OPEN(name)                                                        \
  int name(const char* path, int flags, ...) {                            \
    va_list rest;                                                         \
    va_start(rest, flags);                                                \
    const int mode = va_arg(rest, int);                                   \
    va_end(rest);                                                         \
    return opened((int)syscall(SYS_openat, AT_FDCWD, path, flags, mode)); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                \
  int name(int at, const char* path, int flags, ...) {              \
    va_list rest;                                                   \
    va_start(rest, flags);                                          \
    const int mode = va_arg(rest, int);                             \
    va_end(rest);                                                   \
    return opened((int)syscall(SYS_openat, at, path, flags, mode)); \
  }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                          \
  FILE* name(const char* path, const char* mode) {                           \
    FILE* (*const real)(const char*, const char*) = dlsym(RTLD_NEXT, #name); \
    FILE* const file = real(path, mode);                                     \
    if (file != NULL) opened(fileno(file));                                  \
    return file;                                                             \
  }
FOPEN(fopen)
FOPEN(fopen64)

#define PREAD(name)                                               \
  ssize_t name(int fd, void* to, size_t bytes, off_t offset) {    \
    const long got = syscall(SYS_pread64, fd, to, bytes, offset); \
    note("read", fd, (long)offset, got);                          \
    return got;                                                   \
  }
PREAD(pread)
PREAD(pread64)

ssize_t read(int fd, void* to, size_t bytes) {
  const long offset = syscall(SYS_lseek, fd, 0, SEEK_CUR);
  const long got = syscall(SYS_read, fd, to, bytes);
  if (offset >= 0) note("read", fd, offset, got);
  return got;
}
