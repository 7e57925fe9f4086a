#include <cli/bench/commands.h>

#include <cli/bench/options.h>
#include <cli/bench/servers/options.h>
#include <cli/bench/servers/rank.h>
#include <cli/bench/servers/sparse.h>
#include <cli/engine.h>
#include <cli/failure.h>
#include <cli/number_check.h>

namespace stormo::cli {
namespace {

constexpr const char* kBenchServers = "bench servers";

constexpr const char* kExamples =
    "  stormo bench servers -n 2 --servers 2 --bytes 4K,1M,16M\n"
    "  stormo bench servers -n 2 --sparse\n"
    "  stormo bench servers -H w1,w2,s1,s2 --processes 2 --servers 8 --bytes 2M --time 2s\n"
    "\n"
    "docs/benchmarks.md says what is counted.";

constexpr const char* kEngine = "stormo";

int run(const ServersArguments& arguments) {
  const auto options = to_servers_options(arguments);
  if (!options.ok()) return fail(kBenchServers, options.status());
  if (arguments.sparse) {
    const int workers = arguments.launch.ranks.value_or(1);
    return exit_code_of(kBenchServers, run_sparse_workers(*options, workers, arguments.json));
  }
  const auto place = find_place(kEngine, arguments.launch);
  if (!place.ok()) return fail(kBenchServers, place.status());
  if (place->source == "none" && arguments.launch.wants_launch())
    return launch_copies(arguments.launch, "bench");
  const auto run_rank = options->processes > 0 ? run_remote_servers_rank : run_servers_rank;
  return exit_code_of(kBenchServers, run_rank(*place, *options, arguments.json));
}

void add_flags(CLI::App& command, ServersArguments& a) {
  add_launch_flags(command, a.launch);
  note_launch_numbers(command, a.wrong);
  auto* servers = command.add_option("--servers", a.servers, "Server shards, with one key each")
                      ->capture_default_str();
  auto* processes = command.add_option(
      "--processes", a.processes,
      "Of so many ranks, the last ones, each is a server process that has its share of the shards");
  command.add_flag("--beside", a.beside, "The first ranks are these, and are workers, too")
      ->needs(processes);
  auto* bytes = command
                    .add_option("--bytes", a.bytes,
                                "Sizes of a key, separated by commas; every server has one key")
                    ->delimiter(',')
                    ->capture_default_str();
  command.add_option("--time", a.seconds, "Time of each loop of a round")->capture_default_str();
  auto* rounds =
      command.add_option("--rounds", a.rounds, "Rounds for each size")->capture_default_str();
  for (auto* number : {servers, rounds}) note_number(number, 1, a.wrong);
  note_number(processes, 0, a.wrong);
  command
      .add_flag("--sparse", a.sparse,
                "Workers are threads that push rows to one shard, in place and in other ways")
      ->excludes(servers)
      ->excludes(processes)
      ->excludes(bytes);
  command.add_flag("--json", a.json, "One JSON object per line of the table on stdout");
}

}  // namespace

void add_bench_servers_command(CLI::App& bench, Invocation& invocation) {
  add_command(bench, invocation, "servers", "Measure pulls and pushes", kExamples, add_flags, run);
}

}  // namespace stormo::cli
