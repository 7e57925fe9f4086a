// A launcher for elastic_launch_test.cc: `elastic_launcher RANKS OPTION... -- PROGRAM ...` runs an
// elastic job. Options: `hosts=LIST`, `shell=SCRIPT`, `register=ADDRESS`, `control=PATH`, `json`,
// `loaded`: as `stormo train`, it has loaded the program before.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include <stormo/launch/environment.h>
#include <stormo/launch/job/agent.h>
#include <stormo/launch/job/launcher.h>
#include <stormo/launch/job/local_ranks.h>

namespace {

using namespace stormo::launch;

void take(const std::string& option, LaunchOptions& options) {
  const auto value = option.substr(option.find('=') + 1);
  if (option.starts_with("hosts=")) {
    options.hosts = value;
    options.interface = "lo";
  } else if (option.starts_with("shell=")) {
    options.remote_shell = value + " {host}";
  } else if (option.starts_with("register=")) {
    options.elastic->register_address = value;
  } else if (option.starts_with("control=")) {
    options.elastic->control = value;
  } else if (option == "json") {
    options.output = OutputMode::kJson;
  }
}

std::shared_ptr<ForkServer> load(const LaunchOptions& options) {
  HostJob job;
  job.forks = true;
  job.local_size = *options.ranks;
  job.environment = own_environment();
  job.program = options.program;
  return load_program(job, job.program.front(), ::getpgrp(), read_cpus());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "agent") {
    const stormo::Result<int> code = run_agent();
    return code.ok() ? *code : 1;
  }
  LaunchOptions options;
  options.forks = true;
  options.bind = BindPolicy::kNone;
  options.environment = {{"STORMO_THREADS", "1"}};
  options.ranks = std::atoi(argv[1]);
  options.elastic.emplace();
  bool is_loaded = false;
  int i = 2;
  for (; std::string(argv[i]) != "--"; ++i) {
    take(argv[i], options);
    is_loaded = is_loaded || std::string(argv[i]) == "loaded";
  }
  options.program.assign(argv + i + 1, argv + argc);
  if (is_loaded) options.loaded = load(options);
  const stormo::Result<int> code = launch(options);
  if (!code.ok()) std::fprintf(stderr, "%s\n", code.status().to_string().c_str());
  return code.ok() ? *code : 99;
}
