#include <cli/launch_flags.h>

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include <cli/failure.h>
#include <cli/flag_values.h>
#include <cli/own_program.h>
#include <stormo/comm/selection/selection.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/host_spec.h>
#include <stormo/transport/tcp/tcp_transport.h>

namespace stormo::cli {

void add_network_flags(CLI::App& command, LaunchFlags& flags) {
  command.add_option("--interface", flags.interface,
                     "Network interface between hosts; of several (br0,eth0) each\nhost takes the "
                     "first that it has");
  command.add_option("--ports", flags.ports, "Ports to listen on, e.g. 29500-29600");
  command.add_option("--remote-shell", flags.remote_shell, "How to run a program on another host")
      ->capture_default_str();
}

void add_launch_flags(CLI::App& command, LaunchFlags& flags) {
  command.add_option(
      "-n,--ranks", flags.ranks,
      "Number of ranks; default: all slots of -H, else 1\n(run and tune need -n or -H)");
  command.add_option("-H,--hosts", flags.hosts, "host:slots,host:slots; localhost is this one");
  command.add_option("--bind", flags.bind, "Bind ranks to: auto, core, numa, none")
      ->capture_default_str();
  add_network_flags(command, flags);
  command.add_option("--heartbeat", flags.heartbeat,
                     "A rank silent for so long is dead or frozen [2500ms];\n0s: never judged");
  command.add_option("--stall-warning", flags.stall_warning,
                     "Name the rank that others wait for after so long, or\n5 times the slowest "
                     "step [10s]; 0s: never");
  command.add_option("--stall-timeout", flags.stall_timeout,
                     "End the job when it still has not come so long beyond\nthe slowest step "
                     "[60s]; 0s: never");
  command
      .add_option("--sockets", flags.sockets,
                  "Connections to each rank of another host: more than\none where a single flow "
                  "does not get the whole line")
      ->check(CLI::Range(1, transport::TcpOptions::kMaxSockets))
      ->capture_default_str();
  command.add_option("--selection", flags.selection,
                     "File that says which algorithms run, from 'stormo tune'");
  command.add_flag("--checksum", flags.checksum, "Checksums over all data between hosts");
}

std::vector<std::pair<std::string, std::string>> variables_of(const LaunchFlags& flags) {
  std::vector<std::pair<std::string, std::string>> out;
  const auto add = [&out](const char* variable, std::string value) {
    if (!value.empty()) out.emplace_back(variable, std::move(value));
  };
  add("STORMO_HEARTBEAT", flags.heartbeat);
  add("STORMO_STALL_WARNING", flags.stall_warning);
  add("STORMO_STALL_TIMEOUT", flags.stall_timeout);
  add("STORMO_INTERFACE", flags.interface);
  add("STORMO_PORTS", flags.ports);
  add("STORMO_SOCKETS", flags.sockets == 1 ? "" : std::to_string(flags.sockets));
  add("STORMO_SELECTION",
      flags.selection.empty() ? "" : std::filesystem::absolute(flags.selection).string());
  add("STORMO_CHECKSUM", flags.checksum ? "1" : "");
  return out;
}

std::vector<launch::HostShare> place_of_ranks(const LaunchFlags& flags,
                                              std::vector<std::string>& errors) {
  std::vector<launch::HostSlots> hosts;
  std::optional<int> ranks = flags.ranks;
  if (flags.hosts.empty()) {
    ranks = ranks.value_or(1);
  } else {
    auto parsed = value_or_wrong("-H", launch::parse_hosts(flags.hosts), errors);
    if (!parsed) return {{"localhost", 0, 1}};
    hosts = std::move(*parsed);
  }
  const auto shares = launch::place_ranks(ranks, hosts);
  if (shares.ok()) return *shares;
  errors.push_back(shares.status().message());
  return {{"localhost", 0, 1}};
}

int ranks_here(const std::vector<launch::HostShare>& shares) {
  int here = 0;
  for (const launch::HostShare& share : shares) {
    if (launch::is_this_host(share.name)) here += share.ranks;
  }
  return here;
}

launch::LaunchOptions to_launch_options(const LaunchFlags& flags,
                                        std::vector<std::string>& errors) {
  launch::LaunchOptions options;
  options.ranks = flags.ranks;
  options.hosts = flags.hosts;
  options.remote_shell = flags.remote_shell;
  options.interface = flags.interface;
  const auto bind = value_or_wrong("--bind", launch::parse_bind_policy(flags.bind), errors);
  if (bind) options.bind = *bind;
  if (!flags.ports.empty()) {
    const auto ports = value_or_wrong("--ports", launch::parse_port_range(flags.ports), errors);
    if (ports) options.ports = *ports;
  }
  const auto time = [&](const char* flag, const std::string& text) {
    return read_duration(flag, text, errors);
  };
  const auto heartbeat_variable = launch::process_environment()("STORMO_HEARTBEAT");
  if (!flags.heartbeat.empty())
    options.heartbeat_timeout = time("--heartbeat", flags.heartbeat).value_or(Duration::zero());
  else if (heartbeat_variable)
    options.heartbeat_timeout =
        time("STORMO_HEARTBEAT", *heartbeat_variable).value_or(Duration::zero());
  if (!flags.stall_warning.empty()) static_cast<void>(time("--stall-warning", flags.stall_warning));
  if (!flags.stall_timeout.empty()) static_cast<void>(time("--stall-timeout", flags.stall_timeout));
  if (!flags.selection.empty()) {
    note(comm::read_selection(flags.selection).status().within("--selection"), errors);
  }
  options.environment = variables_of(flags);
  return options;
}

int launch_ranks(const launch::LaunchOptions& options, const char* command) {
  const Result<int> code = launch::launch(options);
  if (code.ok()) return *code;
  const int failed_with = fail(command, code.status());
  if (options.on_end) options.on_end(failed_with, code.status().message(), false);
  return failed_with;
}

int launch_copies(const LaunchFlags& flags, const char* command) {
  const Result<std::string> program = own_program();
  if (!program.ok()) return fail(command, program.status());
  const Result<std::vector<std::string>> words = own_arguments();
  if (!words.ok()) return fail(command, words.status());
  Wrong none;
  launch::LaunchOptions options = to_launch_options(flags, none);
  options.output = launch::OutputMode::kRaw;
  options.program = {*program};
  options.program.insert(options.program.end(), words->begin(), words->end());
  return launch_ranks(options, command);
}

}  // namespace stormo::cli
