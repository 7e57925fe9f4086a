#pragma once

#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <string>
#include <vector>

#include <stormo/launch/job/launcher.h>

namespace stormo::test {

/// So many names of this machine with their shares of the ranks; the first have one more.
inline std::string names_of_hosts(int hosts, int ranks) {
  std::string names;
  for (int h = 0; h < hosts; ++h) {
    names += (h == 0 ? "localhost:" : ",127.0.0." + std::to_string(h) + ":") +
             std::to_string(ranks / hosts + (h < ranks % hosts ? 1 : 0));
  }
  return names;
}

/// Runs a program, whose main() calls serve_forks(), as a job of `ranks` ranks with one thread
/// each, in a child process; its exit code. Between `hosts`, names of this machine, nothing is
/// shared but a network. Only for programs that have not started threads, nor linked what does: it
/// forks.
inline int run_job(int ranks, const std::vector<std::string>& program, int hosts = 1) {
  const pid_t child = fork();
  if (child == 0) {
    launch::LaunchOptions options;
    options.program = program;
    options.forks = true;
    options.ranks = ranks;
    if (hosts > 1) options.hosts = names_of_hosts(hosts, ranks);
    options.bind = launch::BindPolicy::kNone;
    options.environment = {{"STORMO_THREADS", "1"}};
    const Result<int> code = launch::launch(options);
    if (!code.ok()) std::fprintf(stderr, "%s\n", code.status().to_string().c_str());
    _exit(code.ok() ? *code : 99);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace stormo::test
