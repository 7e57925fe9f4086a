// `stormo tune`: measures which algorithms are fastest here and writes the choice to a file.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>

#include <cli/commands.h>
#include <cli/failure.h>
#include <cli/flag_values.h>
#include <cli/launch_flags.h>
#include <cli/output_path.h>
#include <cli/place.h>
#include <stormo/base/replace_file.h>
#include <stormo/base/units.h>
#include <stormo/comm/tune/regret.h>
#include <stormo/comm/tune/tune.h>

namespace stormo::cli {
namespace {

constexpr const char* kTune = "tune";

constexpr const char* kTuneExamples =
    "  stormo tune -n 4                               4 ranks on this host\n"
    "  stormo tune -H a:2,b:2 --out cluster.selection between hosts, over ssh\n"
    "  stormo train recipe.toml -H a:2,b:2 --selection cluster.selection\n"
    "\n"
    "Every algorithm of 'stormo plan list' that suits these hosts is measured over sizes. The\n"
    "default choice stays where no other is clearly faster. --check writes nothing: it compares\n"
    "what would run, with --selection or without, with the best that there is.";

struct TuneArguments {
  LaunchFlags launch;
  std::string out = "stormo.selection";
  std::string time = "90s";
  std::string max_bytes = "16MiB";
  std::string pause = "0s";
  bool check = false;
  bool json = false;
};

comm::TuneOptions to_options(const TuneArguments& a, Wrong& errors) {
  comm::TuneOptions options;
  options.budget = read_duration("--time", a.time, errors).value_or(options.budget);
  options.pause = read_duration("--pause", a.pause, errors).value_or(options.pause);
  if (const auto bytes = read_bytes("--max-bytes", a.max_bytes, errors)) {
    options.max_bytes = *bytes;
    if (*bytes < 1024 || *bytes > (std::uint64_t{1} << 30))
      errors.push_back("--max-bytes: give 1KiB to 1GiB");
  }
  return options;
}

std::string text_of(const comm::Choice& choice) {
  return fmt::format("{}{}", choice.builder->name,
                     choice.pieces > 1 ? fmt::format(" in {} pieces", choice.pieces) : "");
}

std::string text_of(const std::optional<comm::Choice>& choice) {
  return choice ? text_of(*choice) : "none: posted whole";
}

std::string seconds_text(double s) {
  return format_duration(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s)));
}

void print_result(const comm::TuneResult& r) {
  fmt::print("{:<15} {:>8}  {:<34} {:>10}  {:>5.2f}x\n", to_string(r.goal), format_bytes(r.bytes),
             text_of(r.best), seconds_text(r.seconds), r.default_seconds / r.seconds);
  std::fflush(stdout);
}

void print_regret(const comm::Regret& r, int ranks, bool json) {
  if (json) {
    fmt::print("{}\n", nlohmann::json{{"ranks", ranks},
                                      {"bytes", r.bytes},
                                      {"selected", text_of(r.selected)},
                                      {"selected_s", r.selected_seconds},
                                      {"best", text_of(r.best)},
                                      {"best_s", r.best_seconds},
                                      {"regret", r.ratio()}}
                           .dump());
  } else {
    fmt::print("{:>8}  {:<34} {:>10}  {:<34} {:>5.2f}\n", format_bytes(r.bytes),
               text_of(r.selected), seconds_text(r.selected_seconds), text_of(r.best), r.ratio());
  }
  std::fflush(stdout);
}

/// `stormo tune --check` on one rank.
Status check(comm::Group& world, const comm::TuneOptions& options, bool json) {
  const bool speaks = world.rank() == 0;
  if (speaks && !json)
    fmt::print("{:>8}  {:<34} {:>10}  {:<34} regret\n", "bytes", "selected", "time", "fastest");
  comm::RegretOptions regret{.pause = options.pause};
  std::erase_if(regret.sizes, [&](std::uint64_t bytes) { return bytes > options.max_bytes; });
  STORMO_ASSIGN_OR_RETURN(const auto found, comm::measure_regret(world, regret, [&](const auto& r) {
                            if (speaks) print_regret(r, world.size(), json);
                          }));
  if (!speaks || json) return {};
  double sum = 0;
  std::ptrdiff_t near = 0;
  for (const comm::Regret& r : found) {
    sum += r.ratio();
    near += r.ratio() <= 1.1 ? 1 : 0;
  }
  fmt::print("\nmean regret {:.3f}; within 10 % of the best: {} of {}\n",
             sum / static_cast<double>(found.size()), near, found.size());
  return {};
}

Status run_rank(const transport::Rendezvous& place, const comm::TuneOptions& options,
                const TuneArguments& a) {
  STORMO_ASSIGN_OR_RETURN(const auto joined, comm::join(place));
  auto& world = dynamic_cast<comm::Group&>(*joined);
  if (a.check) {
    STORMO_RETURN_IF_ERROR(check(world, options, a.json));
    return world.finalize(Deadline::never());
  }
  const bool speaks = world.rank() == 0;
  if (speaks) {
    fmt::print("{:<15} {:>8}  {:<34} {:>10}  against the default choice\n", "goal", "bytes",
               "fastest", "time");
  }
  STORMO_ASSIGN_OR_RETURN(const auto selection,
                          comm::tune(world, options, [speaks](const comm::TuneResult& r) {
                            if (speaks) print_result(r);
                          }));
  STORMO_RETURN_IF_ERROR(world.finalize(Deadline::never()));
  if (!speaks) return {};
  STORMO_RETURN_IF_ERROR(
      replace_file(a.out, [&](std::ostream& file) { file << to_text(selection); }));
  fmt::print("\nwritten: {0}; use it with --selection {0}\n", a.out);
  return {};
}

int run(const TuneArguments& a) {
  Wrong errors;
  const auto tune_options = to_options(a, errors);
  static_cast<void>(to_launch_options(a.launch, errors));
  const Status writable = a.check ? Status{} : check_output_path(a.out);
  if (a.json && !a.check) errors.push_back("--json: only with --check");
  if (!writable.ok()) errors.push_back("--out " + writable.message());
  if (!errors.empty()) return fail(kTune, as_status(errors));
  const auto place = take_place_in_job(a.launch);
  if (!place.ok()) return fail(kTune, place.status());
  if (place->source == "none" && !a.launch.wants_launch()) {
    return fail(kTune, invalid_argument("one rank has nothing to choose; give -n or -H"));
  }
  if (place->source != "none") return exit_code_of(kTune, run_rank(*place, tune_options, a));
  return launch_copies(a.launch, kTune);
}

void add_flags(CLI::App& command, TuneArguments& a) {
  add_launch_flags(command, a.launch);
  command.add_option("-o,--out", a.out, "File to write")->capture_default_str();
  command.add_option("--time", a.time, "Time to spend, about")->capture_default_str();
  command.add_option("--max-bytes", a.max_bytes, "Largest buffer to measure")
      ->capture_default_str();
  command.add_option("--pause", a.pause, "Idleness before every run, as that of stormo bench")
      ->capture_default_str();
  command.add_flag("--check", a.check, "Only say how far the selection is from the best");
  command.add_flag("--json", a.json, "With --check: one JSON object per size on stdout");
}

}  // namespace

void add_tune_command(CLI::App& app, Invocation& invocation) {
  add_command<TuneArguments>(app, invocation, "tune",
                             "Find the fastest algorithms for this machine and network",
                             kTuneExamples, add_flags, run);
}

}  // namespace stormo::cli
