// `stormo tune`: measures which algorithms are fastest here and writes the choice to a file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cli/commands.h>
#include <cli/launch_flags.h>
#include <cli/output_path.h>
#include <stormo/base/units.h>
#include <stormo/comm/tune.h>
#include <stormo/launch/environment.h>

namespace stormo::cli {
namespace {

constexpr const char* kTuneExamples =
    "  stormo tune -n 4                               4 ranks on this host\n"
    "  stormo tune -H a:2,b:2 --out cluster.selection between hosts, over ssh\n"
    "  stormo train recipe.toml -H a:2,b:2 --selection cluster.selection\n"
    "\n"
    "Every algorithm of 'stormo plan list' that suits these hosts is measured over sizes. The\n"
    "shipped choice stays where no other is clearly faster.";

struct TuneArguments {
  LaunchFlags launch;
  std::string out = "stormo.selection";
  std::string time = "90s";
  std::string max_bytes = "16MiB";
};

int fail(const Status& status) {
  fmt::print(stderr, "stormo tune: {}\n", status.message());
  return status.code() == Code::kInvalidArgument ? kExitUsage : kExitFailed;
}

Result<comm::TuneOptions> to_options(const TuneArguments& a, std::vector<std::string>& errors) {
  comm::TuneOptions options;
  const auto time = parse_duration(a.time);
  if (!time.ok()) errors.push_back("--time: " + time.status().message());
  if (time.ok()) options.budget = *time;
  const auto bytes = parse_bytes(a.max_bytes);
  if (!bytes.ok()) errors.push_back("--max-bytes: " + bytes.status().message());
  if (bytes.ok()) options.max_bytes = *bytes;
  if (bytes.ok() && (*bytes < 1024 || *bytes > (std::uint64_t{1} << 30))) {
    errors.push_back("--max-bytes: give 1KiB to 1GiB");
  }
  return options;
}

void print_result(const comm::TuneResult& r) {
  const auto text = [](double s) {
    return format_duration(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s)));
  };
  fmt::print("{:<15} {:>8}  {:<34} {:>10}  {:>5.2f}x\n", to_string(r.goal), format_bytes(r.bytes),
             fmt::format("{}{}", r.best.builder->name,
                         r.best.pieces > 1 ? fmt::format(" in {} pieces", r.best.pieces) : ""),
             text(r.seconds), r.shipped_seconds / r.seconds);
  std::fflush(stdout);
}

int run_rank(const transport::Rendezvous& place, const comm::TuneOptions& options,
             const std::string& path) {
  auto joined = comm::join(place);
  if (!joined.ok()) return fail(joined.status());
  comm::Communicator& world = **joined;
  const bool speaks = world.rank() == 0;
  if (speaks) {
    fmt::print("{:<15} {:>8}  {:<34} {:>10}  against the shipped choice\n", "goal", "bytes",
               "fastest", "time");
  }
  const auto selection = comm::tune(world, options, [speaks](const comm::TuneResult& r) {
    if (speaks) print_result(r);
  });
  if (!selection.ok()) return fail(selection.status());
  const Status left = world.finalize(Deadline::never());
  if (!left.ok()) return fail(left);
  if (!speaks) return kExitOk;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << to_text(*selection);
  file.close();
  if (!file) return fail(io_error("cannot write '" + path + "'"));
  fmt::print("\nwritten: {}; use it with --selection {}\n", path, path);
  return kExitOk;
}

int run(const TuneArguments& a, const Invocation& invocation) {
  std::vector<std::string> errors;
  const auto tune_options = to_options(a, errors);
  launch::LaunchOptions options = to_launch_options(a.launch, errors);
  const Status writable = check_output_path(a.out);
  if (!writable.ok()) errors.push_back("--out " + writable.message());
  if (!errors.empty()) return fail(invalid_argument(fmt::format("{}", fmt::join(errors, "\n"))));
  const auto place = launch::read_environment(launch::process_environment());
  if (!place.ok()) return fail(place.status());
  if (place->source == "none" && !a.launch.wants_launch()) {
    return fail(invalid_argument("one rank has nothing to choose; give -n or -H"));
  }
  if (place->source != "none") return run_rank(*place, *tune_options, a.out);
  options.output = launch::OutputMode::kRaw;
  return launch_copies(std::move(options), invocation, "tune");
}

}  // namespace

void add_tune_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      app.add_subcommand("tune", "Find the fastest algorithms for this machine and network");
  command->footer(kTuneExamples);
  const auto a = std::make_shared<TuneArguments>();
  add_launch_flags(*command, a->launch);
  command->add_option("-o,--out", a->out, "File to write")->capture_default_str();
  command->add_option("--time", a->time, "Time to spend, about")->capture_default_str();
  command->add_option("--max-bytes", a->max_bytes, "Largest buffer to measure")
      ->capture_default_str();
  command->callback([a, &invocation] { invocation.exit_code = run(*a, invocation); });
}

}  // namespace stormo::cli
