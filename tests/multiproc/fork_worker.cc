// A program for fork_server_test.cc: `fork_worker FILE`. Appends a byte to FILE when it is loaded,
// and serves forks. A copy writes what it got into its output, and does what WHAT says.
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include <stormo/launch/process/fork_server.h>

namespace {

std::string text_of(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "none" : value;
}

std::string read_all(int fd) {
  std::string out;
  for (char c = 0; ::read(fd, &c, 1) == 1;) out += c;
  return out;
}

char name_at_begin[64];

/// As a library does that is unloaded at the end of the process.
__attribute__((destructor)) void read_environment_late() {
  if (name_at_begin[0] != 0 && text_of("NAME") != name_at_begin) ::_exit(99);
}

}  // namespace

int main(int argc, char** argv) {
  std::FILE* const loaded = std::fopen(argv[argc - 1], "a");
  std::fputc('.', loaded);
  std::fclose(loaded);
  if (text_of("STORMO_FORK_SERVER") != "none" && text_of("WHAT") == "die") return 1;
  stormo::launch::serve_forks(argc, argv);
  std::snprintf(name_at_begin, sizeof name_at_begin, "%s", text_of("NAME").c_str());

  const std::string secret = text_of("SECRET_FD");
  cpu_set_t cpus;
  ::sched_getaffinity(0, sizeof cpus, &cpus);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  std::printf(
      "%d arguments, last %s, name %s, server %s, secret %s, input '%s', group %d, cpus %d, files "
      "%lu\n",
      argc - 1, argv[argc - 1], text_of("NAME").c_str(), text_of("STORMO_FORK_SERVER").c_str(),
      secret == "none" ? "none" : read_all(std::stoi(secret)).c_str(),
      read_all(STDIN_FILENO).c_str(), ::getpgrp(), CPU_COUNT(&cpus),
      static_cast<unsigned long>(files.rlim_cur));
  std::fflush(stdout);
  if (text_of("WHAT") == "wait") ::pause();
  return std::atoi(text_of("WHAT").c_str());
}
