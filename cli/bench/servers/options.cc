#include <cli/bench/servers/options.h>

#include <fmt/format.h>

#include <cli/flag_values.h>
#include <stormo/base/units.h>
#include <stormo/launch/process/available_memory.h>

namespace stormo::cli {

Result<BenchServersOptions> to_servers_options(const ServersArguments& a) {
  constexpr int kMostServers = 4096;
  BenchServersOptions options{.servers = a.servers,
                              .processes = a.processes,
                              .beside = a.beside,
                              .bytes = {},
                              .rounds = a.rounds};
  Wrong wrong = a.wrong;
  for (const std::string& text : a.bytes) {
    const auto bytes = read_bytes("--bytes", text, wrong);
    if (!bytes) continue;
    if (*bytes == 0 || *bytes % sizeof(float) != 0)
      wrong.push_back(fmt::format("--bytes: {} is no multiple of 4 above 0 (float32)", text));
    else
      options.bytes.push_back(*bytes);
  }
  const std::uint64_t available = launch::available_memory();
  for (const std::uint64_t bytes : options.bytes) {
    // two versions of each shard, and a gradient of each worker
    const auto copies = static_cast<std::uint64_t>(2 * a.servers + a.launch.ranks.value_or(1));
    if (bytes <= available / copies) continue;
    wrong.push_back(fmt::format("--bytes: {} need {} copies, but {} of memory are available",
                                format_bytes(bytes), copies, format_bytes(available)));
  }
  if (const auto time = read_duration("--time", a.seconds, wrong)) {
    options.seconds = to_seconds(*time);
    if (options.seconds <= 0) wrong.push_back("--time: more than 0");
  }
  if (a.servers > kMostServers) wrong.push_back(fmt::format("--servers: at most {}", kMostServers));
  if (a.processes > 0 && a.servers % a.processes != 0) {
    wrong.push_back(fmt::format("--processes: {} shards cannot be divided equally by {}; 0: none",
                                a.servers, a.processes));
  }
  if (!a.launch.hosts.empty() && a.processes == 0) {
    wrong.push_back(
        "--hosts: without --processes server shards are in memory that workers of one host share; "
        "use -n, or --processes");
  }
  if (!a.beside && a.processes > 0 && a.launch.ranks.value_or(a.processes + 1) <= a.processes) {
    wrong.push_back(fmt::format("--processes: {} of {} ranks leave no worker; raise -n",
                                a.processes, *a.launch.ranks));
  }
  if (a.beside && a.processes == 0) wrong.push_back("--beside: needs --processes");
  static_cast<void>(to_launch_options(a.launch, wrong));
  STORMO_RETURN_IF_ERROR(as_status(wrong));
  return options;
}

}  // namespace stormo::cli
