#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <cli/bench_all_reduce.h>
#include <cli/commands.h>
#include <cli/launch_flags.h>
#include <stormo/base/units.h>
#include <stormo/launch/environment.h>

namespace stormo::cli {
namespace {

constexpr const char* kBenchExamples =
    "  stormo bench all_reduce -n 2                          a table over sizes\n"
    "  stormo bench all_reduce -n 2 --bytes 8,64K,1M --json  one JSON object per size\n"
    "  stormo bench all_reduce -H a:1,b:1                    between two hosts, over ssh";

struct BenchArguments {
  LaunchFlags launch;
  std::vector<std::string> bytes = {"8", "4K", "64K", "1M", "16M"};
  std::string seconds = "300ms";
  std::string buffers = "arena";
  bool json = false;
};

int fail(const Status& status) {
  fmt::print(stderr, "stormo bench: {}\n", status.message());
  return status.code() == Code::kInvalidArgument ? kExitUsage : kExitFailed;
}

Result<BenchOptions> to_options(const BenchArguments& arguments) {
  BenchOptions options;
  std::string wrong;
  for (const std::string& text : arguments.bytes) {
    const auto bytes = parse_bytes(text);
    if (!bytes.ok())
      wrong += "--bytes: " + bytes.status().message() + "\n";
    else if (*bytes % sizeof(float) != 0)
      wrong += "--bytes: " + text + " is no multiple of 4 (float32)\n";
    else
      options.bytes.push_back(*bytes);
  }
  const auto seconds = parse_duration(arguments.seconds);
  if (!seconds.ok())
    wrong += "--time: " + seconds.status().message() + "\n";
  else
    options.seconds_per_size = std::chrono::duration<double>(*seconds).count();
  options.private_buffers = arguments.buffers == "private";
  if (wrong.empty()) return options;
  wrong.pop_back();
  return invalid_argument(wrong);
}

void print_result(const comm::Communicator& world, const BenchResult& r, bool json) {
  const std::string algorithm = world.algorithm(plan::GoalKind::kAllReduce, r.bytes);
  const char* transport = world.cross_size() == 1  ? "shm"
                          : world.local_size() > 1 ? "shm+tcp"
                                                   : "tcp";
  if (json) {
    const nlohmann::ordered_json line = {
        {"op", "all_reduce"},        {"ranks", world.size()}, {"hosts", world.cross_size()},
        {"bytes", r.bytes},          {"dtype", "float32"},    {"algorithm", algorithm},
        {"transport", transport},    {"p50_s", r.p50_s},      {"p90_s", r.p90_s},
        {"algbw", r.algbw},          {"busbw", r.busbw},      {"verified", r.verified},
        {"iterations", r.iterations}};
    fmt::print("{}\n", line.dump());
  } else {
    const auto time = [](double s) {
      return format_duration(
          std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s)));
    };
    fmt::print("{:>10}  {:>10}  {:>10}  {:>8.2f}  {:>8.2f}  {:>10}  {}\n", format_bytes(r.bytes),
               time(r.p50_s), time(r.p90_s), r.algbw / 1e9, r.busbw / 1e9, r.iterations,
               r.verified ? "ok" : "WRONG");
  }
  std::fflush(stdout);
}

int run_rank(const transport::Rendezvous& place, const BenchOptions& options, bool json) {
  auto joined = comm::join(place);
  if (!joined.ok()) return fail(joined.status());
  comm::Communicator& world = **joined;
  if (world.rank() == 0 && !json) {
    fmt::print("all_reduce of float32, {} ranks on {} host{}\n", world.size(), world.cross_size(),
               world.cross_size() == 1 ? "" : "s");
    fmt::print("{:>10}  {:>10}  {:>10}  {:>8}  {:>8}  {:>10}\n", "bytes", "p50", "p90", "alg GB/s",
               "bus GB/s", "iterations");
  }
  bool verified = true;
  for (const std::uint64_t bytes : options.bytes) {
    const auto result = bench_all_reduce(world, bytes, options);
    if (!result.ok()) return fail(result.status());
    verified = verified && result->verified;
    if (world.rank() == 0) print_result(world, *result, json);
  }
  const Status left = world.finalize(Deadline::never());
  if (!left.ok()) return fail(left);
  return verified ? kExitOk : kExitFailed;
}

int launch_ranks(const BenchArguments& arguments, const Invocation& invocation) {
  std::vector<std::string> errors;
  launch::LaunchOptions options = to_launch_options(arguments.launch, errors);
  if (!errors.empty()) return fail(invalid_argument(fmt::format("{}", fmt::join(errors, "\n"))));
  options.output = launch::OutputMode::kRaw;
  return launch_copies(std::move(options), invocation, "bench");
}

int run(const BenchArguments& arguments, const Invocation& invocation) {
  const auto options = to_options(arguments);
  if (!options.ok()) return fail(options.status());
  const auto place = launch::read_environment(launch::process_environment());
  if (!place.ok()) return fail(place.status());
  if (place->source == "none" && arguments.launch.wants_launch()) {
    return launch_ranks(arguments, invocation);
  }
  return run_rank(*place, *options, arguments.json);
}

}  // namespace

void add_bench_command(CLI::App& app, Invocation& invocation) {
  CLI::App* bench = app.add_subcommand("bench", "Measure collectives");
  bench->footer(kBenchExamples);
  bench->require_subcommand(1);
  CLI::App* command =
      bench->add_subcommand("all_reduce", "Sum float32 buffers over all ranks, in place");
  command->footer(kBenchExamples);
  const auto a = std::make_shared<BenchArguments>();
  add_launch_flags(*command, a->launch);
  command->add_option("--bytes", a->bytes, "Sizes, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--time", a->seconds, "Time to spend on each size")->capture_default_str();
  command
      ->add_option("--buffers", a->buffers,
                   "arena: where peers can read them; private: ordinary memory")
      ->check(CLI::IsMember({"arena", "private"}))
      ->capture_default_str();
  command->add_flag("--json", a->json, "One JSON object per size on stdout");
  command->callback([a, &invocation] { invocation.exit_code = run(*a, invocation); });
}

}  // namespace stormo::cli
