#include <cli/bench/contenders.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <set>
#include <utility>

#include <stormo/base/file.h>
#include <stormo/launch/process/spawn.h>

namespace stormo::cli {
namespace {

using Words = std::vector<std::string>;

/// The launch flags of a child that is a `stormo` command.
Words launch_words(const BenchSite& site) {
  const LaunchFlags& flags = site.launch;
  Words words = {"-n", std::to_string(site.ranks)};
  if (!flags.hosts.empty())
    append(words, {"-H", flags.hosts, "--remote-shell", flags.remote_shell});
  if (!flags.interface.empty()) append(words, {"--interface", flags.interface});
  if (!flags.ports.empty()) append(words, {"--ports", flags.ports});
  if (flags.sockets != 1) append(words, {"--sockets", std::to_string(flags.sockets)});
  if (!flags.selection.empty()) append(words, {"--selection", flags.selection});
  append(words, {"--bind", flags.bind});
  if (!flags.heartbeat.empty()) append(words, {"--heartbeat", flags.heartbeat});
  return words;
}

/// A shell line that runs its arguments where new connections use cubic: in host, some machines'
/// default (bbr) paces the loopback interface, which slows Gloo down to half its speed.
Words with_cubic_loopback(const BenchSite& site) {
  const std::string control = first_line("/proc/sys/net/ipv4/tcp_congestion_control");
  const bool able = site.root && launch::find_program("unshare", site.path).ok() &&
                    launch::find_program("ip", site.path).ok();
  if (site.hosts > 1 || control == "cubic" || !able) return {};
  return {"unshare",
          "--net",
          "sh",
          "-c",
          "ip link set lo up; ip route change local 127.0.0.1 dev lo table local proto kernel "
          "scope host src 127.0.0.1 congctl cubic; exec \"$@\"",
          "sh"};
}

}  // namespace

std::string last_interface(const std::string& list) {
  return list.substr(list.rfind(',') + 1);  // npos + 1 is 0
}

Words arguments_of_bench(const BenchOptions& options) {
  Words words = {std::string(bench::facts_of(options.operation).name),
                 std::string(to_string(options.dtype)), fmt::format("{}", options.seconds),
                 fmt::format("{}", options.pause)};
  for (const std::uint64_t bytes : options.bytes) words.push_back(std::to_string(bytes));
  return words;
}

bool enters_namespaces(const std::string& remote_shell) {
  const auto has = [&](const char* part) { return remote_shell.find(part) != std::string::npos; };
  return has("hosts exec {host}") || has("netns exec {host}");
}

Contender stormo_contender(const BenchSite& site, const BenchOptions& options,
                           const BenchArguments& arguments) {
  Contender c{.name = "stormo"};
  c.command.words = {site.program, "bench", std::string(bench::facts_of(options.operation).name),
                     "--json"};
  if (options.operation != bench::Operation::kBarrier)
    append(c.command.words, {"--bytes", fmt::format("{}", fmt::join(options.bytes, ","))});
  append(c.command.words, {"--time", arguments.seconds, "--pause",
                           fmt::format("{}us", std::lround(options.pause * 1e6)), "--dtype",
                           arguments.dtype, "--buffers", arguments.buffers});
  append(c.command.words, launch_words(site));
  return c;
}

Words run_words(const BenchSite& site, Speaker speaker) {
  Words words = {site.program, "run"};
  append(words, launch_words(site));
  append(words, {"--output", speaker == Speaker::kRankZero ? "raw" : "prefix", "--"});
  return words;
}

Words malloc_words(const std::string& malloc) {
  if (malloc == kDefaultMalloc) return {};
  return {"env", "MALLOC_MMAP_THRESHOLD_=4294967296", "MALLOC_TRIM_THRESHOLD_=4294967296",
          "MALLOC_TOP_PAD_=268435456"};
}

Result<std::string> find_interpreter(const std::string& contender, const std::string& python,
                                     const std::vector<PythonImport>& imports,
                                     const std::string& flag) {
  const char* active = std::getenv("VIRTUAL_ENV");
  std::string interpreter = !python.empty()     ? python
                            : active != nullptr ? std::string(active) + "/bin/python3"
                                                : "python3";
  static std::set<std::pair<std::string, std::string>> imported;  // an import takes seconds
  for (const auto& [statement, package] : imports) {
    if (imported.contains({interpreter, statement})) continue;
    const auto tried = run_child({{interpreter, "-c", statement}, {}});
    if (!tried.ok() && tried.status().code() == Code::kInterrupted) return tried.status();
    if (!tried.ok() || tried->status != 0) {
      return invalid_argument(
          fmt::format("{}: '{}' cannot '{}'; install it by 'pip install {}', or name another "
                      "interpreter by {}",
                      contender, interpreter, statement, package, flag));
    }
    imported.emplace(interpreter, statement);
  }
  return interpreter;
}

Status check_scripts(const BenchSite& site, const std::string& contender,
                     const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    const std::string path = site.tools + "/" + file;
    if (::access(path.c_str(), R_OK) != 0)
      return invalid_argument(fmt::format("{}: {} is missing", contender, path));
  }
  return {};
}

Result<Contender> torch_contender(const BenchSite& site, const TorchScript& script,
                                  const std::string& python) {
  const std::string file = site.tools + "/" + script.file;
  std::vector<std::string> files = script.modules;
  files.push_back(script.file);
  STORMO_RETURN_IF_ERROR(check_scripts(site, script.name, files));
  STORMO_ASSIGN_OR_RETURN(const std::string interpreter,
                          find_interpreter(script.name, python, script.imports, "--python"));
  Contender c{.name = script.name, .rendezvous = site.scratch + "/gloo_rendezvous"};
  c.command.words = with_cubic_loopback(site);
  append(c.command.words, run_words(site, script.speaker));
  append(c.command.words, script.prefix);
  append(c.command.words, {interpreter, file, c.rendezvous});
  append(c.command.words, script.arguments);
  const std::string interface = site.hosts == 1 ? "lo" : last_interface(site.launch.interface);
  if (!interface.empty()) c.command.environment = {{"GLOO_SOCKET_IFNAME", interface}};
  return c;
}

Result<Contender> torch_distributed_contender(const std::string& name, const BenchSite& site,
                                              const BenchOptions& options,
                                              const std::string& python) {
  if (options.operation == bench::Operation::kScan)
    return invalid_argument(name + ": torch.distributed has no scan");
  TorchScript script{.name = name, .file = "torch_bench.py"};
  const bool is_own = name == "pytorch_stormo";
  if (is_own) script.imports.push_back({"import stormo_torch", "stormo-torch"});
  script.arguments = is_own ? Words{"stormo", options.private_buffers ? "private" : "arena"}
                            : Words{"gloo", "private"};
  append(script.arguments, arguments_of_bench(options));
  return torch_contender(site, script, python);
}

}  // namespace stormo::cli
