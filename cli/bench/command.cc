#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cli/bench/chart.h>
#include <cli/bench/commands.h>
#include <cli/bench/contenders.h>
#include <cli/bench/mpi.h>
#include <cli/bench/options.h>
#include <cli/bench/rank.h>
#include <cli/bench/rounds.h>
#include <cli/bench/site.h>
#include <cli/bench/table.h>
#include <cli/commands.h>
#include <cli/engine.h>
#include <cli/failure.h>
#include <stormo/launch/process/signals.h>

namespace stormo::cli {
namespace {

constexpr const char* kBench = "bench";

constexpr const char* kBenchExamples =
    "  stormo bench all_reduce -n 2                          a table over sizes\n"
    "  stormo bench all_gather -n 2 --bytes 8,64K,1M --json  one JSON object per size\n"
    "  stormo bench all_reduce -H a:1,b:1                    between two hosts, over ssh\n"
    "  mpirun -n 2 stormo bench all_reduce --engine mpi      through the site's own MPI\n"
    "  stormo bench all_reduce -n 4 --against intelmpi,mpich,openmpi,gloo --svg chart.svg\n"
    "  stormo bench all_reduce --hosts 4 --rate 1gbit --against openmpi   (root)\n"
    "\n"
    "docs/benchmarks.md says how figures are made and what they mean.";

/// Stormo and those it is compared with; who cannot take part is an error or, if any will do, left
/// out.
Result<std::vector<Contender>> gather_contenders(const BenchSite& site, const BenchOptions& options,
                                                 const BenchArguments& arguments) {
  std::vector<Contender> contenders = {stormo_contender(site, options, arguments)};
  std::vector<std::string> wrong;
  for (const std::string& name : options.against) {
    const MpiOpponent* mpi = find_mpi_opponent(name);
    auto opponent = mpi != nullptr
                        ? mpi_contender(*mpi, site, options)
                        : torch_distributed_contender(name, site, options, arguments.python);
    if (opponent.ok())
      contenders.push_back(std::move(*opponent));
    else if (opponent.status().code() != Code::kInvalidArgument)
      return opponent.status();
    else if (options.only_present)
      fmt::print(stderr, "stormo bench: left out: {}\n", opponent.status().message());
    else
      wrong.push_back("--against: " + opponent.status().message());
  }
  if (!wrong.empty()) return invalid_argument(fmt::format("{}", fmt::join(wrong, "\n")));
  return contenders;
}

Status write_chart(const std::string& path, const std::string& heading,
                   const std::vector<BenchRow>& rows) {
  std::ofstream file(path);
  file << bench_chart(heading.substr(0, heading.find('\n')), rows);
  file.close();
  return file ? Status{} : errno_error("write " + path);
}

/// The process that is no rank: runs all contenders, round by round. False when a result was wrong.
Result<bool> compare(const BenchArguments& arguments, const BenchOptions& options) {
  // between two children a signal waits for the next one: hosts are always taken away
  STORMO_ASSIGN_OR_RETURN(const auto signals, launch::SignalReader::create());
  STORMO_ASSIGN_OR_RETURN(const auto place, BenchPlace::create(arguments, options.namespaces));
  const BenchSite& site = place->site;
  STORMO_ASSIGN_OR_RETURN(auto contenders, gather_contenders(site, options, arguments));
  for (Contender& c : contenders) {
    c.records = options.bytes.size();
    c.required = true;
  }
  std::map<std::string, std::string> left_out;  // nobody: wrong results are results
  STORMO_ASSIGN_OR_RETURN(const auto results, run_rounds(contenders, options.rounds,
                                                         bench::parse_measurements, left_out));
  const std::vector<BenchRow> rows = rows_of(contenders, results, arguments.rate);
  const std::string heading = bench_heading(options, site.ranks, site.hosts);
  if (!arguments.json) fmt::print("{}{}\n", heading, bench_table(rows));
  bool right = true;
  for (const BenchRow& row : rows) {
    if (arguments.json) fmt::print("{}\n", row_json(row));
    right = right && row.ours.verified;
    for (const Versus& v : row.against) right = right && v.theirs.verified;
  }
  if (!arguments.svg.empty()) STORMO_RETURN_IF_ERROR(write_chart(arguments.svg, heading, rows));
  return right;
}

int run(const BenchArguments& arguments, const bench::OperationFacts& facts) {
  const auto options = to_bench_options(arguments, facts);
  if (!options.ok()) return fail(kBench, options.status());
  const auto place = find_place(arguments.engine, arguments.launch);
  if (!place.ok()) return fail(kBench, place.status());
  const bool rounds = options->in_rounds(arguments);
  const bool alone = place->source == "none";
  const bool through_mpi = !alone && place->source == arguments.engine;
  if (rounds && (place->size > 1 || through_mpi))
    return fail(
        kBench,
        invalid_argument(
            "--rounds, --against, --svg and made hosts start the ranks themselves; leave the outer "
            "launcher away"));
  if (alone && !rounds && arguments.launch.wants_launch())
    return launch_copies(arguments.launch, kBench);
  return exit_code_of(kBench,
                      rounds ? compare(arguments, *options)
                             : run_bench_rank(*place, arguments.engine, *options, arguments.json));
}

void add_flags(CLI::App& command, BenchArguments& a) {
  add_bench_flags(
      command, a,
      "Compare with openmpi, mpich, intelmpi, gloo, pytorch_stormo\n(torch.distributed over "
      "the backend stormo), or all that are\npresent; each runs "
      "in every round",
      "7 with --against", "openmpi_bench and others, torch_bench.py, hosts");
  add_made_hosts_flags(command, a);
  add_engine_flag(command, a.engine);
  command.add_option("--bytes", a.bytes, "Sizes of the whole, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--time", a.seconds, "Time to spend on each size")->capture_default_str();
  command.add_option("--pause", a.pause,
                     "Idleness before every call; default: with --rate until links regain\n"
                     "their burst, else none");
  command
      .add_option("--buffers", a.buffers,
                  "arena: where peers can read them; private: ordinary memory")
      ->check(CLI::IsMember({"arena", "private"}))
      ->capture_default_str();
  command.add_option("--dtype", a.dtype, "Type of the elements")->capture_default_str();
  command.add_option("--svg", a.svg, "Draw time and bandwidth over size into this file");
  command.add_flag("--json", a.json, "One JSON object per size on stdout");
}

}  // namespace

void add_bench_command(CLI::App& app, Invocation& invocation) {
  CLI::App* bench = app.add_subcommand("bench", "Measure collectives, training steps and servers");
  bench->footer(kBenchExamples);
  bench->require_subcommand(1);
  add_bench_step_command(*bench, invocation);
  add_bench_async_command(*bench, invocation);
  add_bench_servers_command(*bench, invocation);
  for (const bench::OperationFacts& facts : bench::kOperations) {
    const std::string name(facts.name);
    CLI::App* command = bench->add_subcommand(name, "Measure " + name);
    command->footer(kBenchExamples);
    const auto a = std::make_shared<BenchArguments>();
    add_flags(*command, *a);
    command->callback([a, &facts, &invocation] { invocation.exit_code = run(*a, facts); });
  }
}

}  // namespace stormo::cli
