#include <cli/bench/options.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include <bench/payload.h>
#include <cli/flag_values.h>
#include <cli/number_check.h>
#include <stormo/base/text.h>
#include <stormo/transport/tcp/tcp_transport.h>

namespace stormo::cli {
namespace {

constexpr int kDefaultRounds = 7;
constexpr int kMostNamespaces = 99;

void read_sizes(const BenchArguments& a, BenchOptions& options, Wrong& wrong) {
  const auto dtype = bench::find_dtype(a.dtype);
  if (dtype)
    options.dtype = *dtype;
  else
    wrong.push_back(fmt::format("--dtype: '{}' is no type that can be added", a.dtype));
  for (const std::string& text : a.bytes) {
    const auto bytes = read_bytes("--bytes", text, wrong);
    if (!bytes) continue;
    if (const std::size_t size = size_of(options.dtype); dtype && *bytes % size != 0)
      wrong.push_back(fmt::format("--bytes: {} is no multiple of {} ({})", text, size, a.dtype));
    else
      options.bytes.push_back(*bytes);
  }
  options.seconds = to_seconds(read_duration("--time", a.seconds, wrong).value_or(Duration{}));
  options.pause = burst_time(a.rate);
  if (!a.pause.empty())
    options.pause = to_seconds(read_duration("--pause", a.pause, wrong).value_or(Duration{}));
}

void read_opponents(const BenchArguments& a, BenchOptions& options, Wrong& wrong) {
  constexpr std::string_view kAll = "all";
  constexpr std::array<std::string_view, 6> kKnown = {"openmpi", "mpich",          "intelmpi",
                                                      "gloo",    "pytorch_stormo", kAll};
  options.against = known_names(kKnown, a.against, "--against", wrong);
  options.only_present = std::ranges::count(options.against, kAll) > 0;
  if (options.only_present) options.against.assign(kKnown.begin(), std::prev(kKnown.end()));
  options.rounds = a.rounds > 0 ? a.rounds : options.against.empty() ? 1 : kDefaultRounds;
}

double bits_per_second(const std::string& rate) {
  const std::size_t unit_at = std::max<std::size_t>(rate.size(), 4) - 4;
  const std::string_view unit = std::string_view(rate).substr(unit_at);
  const double scale = unit == "kbit" ? 1e3 : unit == "mbit" ? 1e6 : unit == "gbit" ? 1e9 : 0;
  return scale * std::max(0.0, number_in<double>(rate.substr(0, unit_at)).value_or(0));
}

}  // namespace

void add_bench_flags(CLI::App& command, BenchFlags& flags, const std::string& opponents,
                     const std::string& default_rounds, const std::string& scripts) {
  add_launch_flags(command, flags.launch);
  note_launch_numbers(command, flags.wrong);
  command.add_option("--against", flags.against, opponents)->delimiter(',');
  note_number(command.add_option("--rounds", flags.rounds,
                                 "Rounds of all contenders; default: " + default_rounds),
              1, flags.wrong);
  command.add_option("--python", flags.python, "An interpreter with torch, for PyTorch and Gloo");
  command.add_option("--tools", flags.tools, "Folder of " + scripts + ";\ndefault: this program's");
}

void note_launch_numbers(CLI::App& command, std::vector<std::string>& wrong) {
  note_number(command.get_option("--ranks"), 1, wrong);
  note_number(command.get_option("--sockets"), 1, wrong, transport::TcpOptions::kMaxSockets);
}

void add_made_hosts_flags(CLI::App& command, BenchFlags& flags) {
  command.add_option("--rate", flags.rate,
                     "With --hosts 4: make 4 hosts with links of this rate (1gbit; root)");
  note_number(
      command.add_option("--ranks-per-host", flags.ranks_per_host, "On hosts that are made")
          ->capture_default_str(),
      1, flags.wrong);
}

int read_namespaces(const BenchFlags& flags, std::vector<std::string>& wrong) {
  const LaunchFlags& launch = flags.launch;
  const std::string& rate = flags.rate;
  const std::string& text = launch.hosts;
  const bool number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  int namespaces = 0;
  if (number) {
    std::from_chars(text.data(), text.data() + text.size(), namespaces);
    if (namespaces < 1 || namespaces > kMostNamespaces)
      wrong.push_back(
          fmt::format("--hosts: {} hosts cannot be made; 1 to {}", text, kMostNamespaces));
    if (launch.ranks)
      wrong.push_back("--ranks: hosts that are made have --ranks-per-host ranks each");
  }
  if (!number && flags.ranks_per_host != 1)
    wrong.push_back("--ranks-per-host: only for hosts that are made (--hosts 4)");
  if (!rate.empty() && !number) wrong.push_back("--rate: only for hosts that are made (--hosts 4)");
  if (!rate.empty() && payload_rate(rate) == 0)
    wrong.push_back(fmt::format("--rate: '{}' is not a rate; write 100mbit or 1gbit", rate));
  if (namespaces == 0) static_cast<void>(to_launch_options(launch, wrong));
  return namespaces;
}

double payload_rate(const std::string& rate) {
  constexpr double kPayload = 1448.0 / 1514.0;
  return bits_per_second(rate) / 8 * kPayload;
}

double burst_time(const std::string& rate) {
  constexpr double kBurstBytes = 128 << 10;  // tools/hosts
  const double bits = bits_per_second(rate);
  return bits > 0 ? kBurstBytes * 8 / bits : 0;
}

Result<BenchOptions> to_bench_options(const BenchArguments& a, const bench::OperationFacts& facts) {
  BenchOptions options;
  options.operation = facts.operation;
  options.private_buffers = a.buffers == "private";
  Wrong wrong = a.wrong;
  if (facts.operation == bench::Operation::kBarrier) {
    BenchArguments no_sizes = a;
    no_sizes.bytes = {"0"};
    read_sizes(no_sizes, options, wrong);
  } else {
    read_sizes(a, options, wrong);
  }
  if (facts.operation == bench::Operation::kBarrier && !a.svg.empty())
    wrong.push_back("--svg: a barrier has no sizes to draw");
  read_opponents(a, options, wrong);
  options.namespaces = read_namespaces(a, wrong);
  STORMO_RETURN_IF_ERROR(as_status(wrong));
  return options;
}

}  // namespace stormo::cli
