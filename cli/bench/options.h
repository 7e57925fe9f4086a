#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <bench/operations.h>
#include <cli/launch_flags.h>
#include <stormo/base/dtype.h>
#include <stormo/base/status.h>

namespace stormo::cli {

/// The flags of all benchmarks that run rounds of several contenders, as written.
struct BenchFlags {
  LaunchFlags launch;
  int rounds = 0;  ///< 0: not given
  std::vector<std::string> against;
  std::string rate;
  int ranks_per_host = 1;
  std::string python;
  std::string tools;
  bool json = false;
  std::vector<std::string> wrong;  ///< what is no number
};
/// Adds them, but not those of hosts that are made. `opponents`: what --against may name, in lines
/// of a help page; `default_rounds` likewise; `scripts`: what is in the folder --tools.
void add_bench_flags(CLI::App& command, BenchFlags& flags, const std::string& opponents,
                     const std::string& default_rounds, const std::string& scripts);
/// -n and --sockets must be numbers, too; what is none is noted in `wrong`.
void note_launch_numbers(CLI::App& command, std::vector<std::string>& wrong);
/// --rate and --ranks-per-host.
void add_made_hosts_flags(CLI::App& command, BenchFlags& flags);

/// The flags of `stormo bench` of a collective, as written.
struct BenchArguments : BenchFlags {
  std::string engine = "stormo";
  std::vector<std::string> bytes = {"8", "4K", "64K", "1M", "16M"};
  std::string seconds = "300ms";
  std::string pause;
  std::string buffers = "arena";
  std::string dtype = "float32";
  std::string svg;
};

/// What they mean.
struct BenchOptions {
  bench::Operation operation = bench::Operation::kAllReduce;
  std::vector<std::uint64_t> bytes;
  double seconds = 0.3;  ///< per size
  double pause = 0;      ///< seconds before every iteration
  DType dtype = DType::kFloat32;
  bool private_buffers = false;
  int rounds = 1;
  std::vector<std::string> against;  ///< names of contenders
  bool only_present = false;         ///< leave out who is not there, instead of refusing
  int namespaces = 0;                ///< make so many hosts; 0: none

  /// Whether a process that is no rank has to run and compare several.
  bool in_rounds(const BenchArguments& arguments) const {
    return rounds > 1 || !against.empty() || namespaces > 0 || !arguments.svg.empty();
  }
};

/// Lists everything that is wrong, one line each.
Result<BenchOptions> to_bench_options(const BenchArguments& arguments,
                                      const bench::OperationFacts& facts);

/// How many hosts are to be made: "-H 4" stands for four, every other list names hosts (0). Appends
/// what is wrong with that, and with all flags of launches.
int read_namespaces(const BenchFlags& flags, std::vector<std::string>& wrong);

/// Bytes per second of payload that a link of this rate carries in Ethernet frames of 1514 bytes; 0
/// for no rate.
double payload_rate(const std::string& rate);

/// Seconds in which a link of this rate, made by tools/hosts, regains its burst; 0 for no rate.
double burst_time(const std::string& rate);

}  // namespace stormo::cli
