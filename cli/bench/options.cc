#include <cli/bench/options.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>

#include <bench/payload.h>
#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

constexpr int kDefaultRounds = 7;
constexpr int kMostNamespaces = 99;

using Wrong = std::vector<std::string>;

void read_sizes(const BenchArguments& a, BenchOptions& options, Wrong& wrong) {
  const auto dtype = bench::find_dtype(a.dtype);
  if (dtype)
    options.dtype = *dtype;
  else
    wrong.push_back(fmt::format("--dtype: '{}' is no type that can be added", a.dtype));
  for (const std::string& text : a.bytes) {
    const auto bytes = parse_bytes(text);
    if (!bytes.ok())
      wrong.push_back("--bytes: " + bytes.status().message());
    else if (const std::size_t size = size_of(options.dtype); dtype && *bytes % size != 0)
      wrong.push_back(fmt::format("--bytes: {} is no multiple of {} ({})", text, size, a.dtype));
    else
      options.bytes.push_back(*bytes);
  }
  const auto seconds = parse_duration(a.seconds);
  if (!seconds.ok())
    wrong.push_back("--time: " + seconds.status().message());
  else
    options.seconds = std::chrono::duration<double>(*seconds).count();
  const auto pause = parse_duration(a.pause.empty() ? "0s" : a.pause);
  if (!pause.ok())
    wrong.push_back("--pause: " + pause.status().message());
  else
    options.pause =
        a.pause.empty() ? burst_time(a.rate) : std::chrono::duration<double>(*pause).count();
}

void read_opponents(const BenchArguments& a, BenchOptions& options, Wrong& wrong) {
  constexpr std::array<const char*, 4> kKnown = {"openmpi", "mpich", "intelmpi", "gloo"};
  for (const std::string& name : a.against) {
    if (name == "all") {
      options.only_present = true;
      options.against.assign(kKnown.begin(), kKnown.end());
    } else if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end()) {
      wrong.push_back(fmt::format("--against: '{}' is unknown; write {} or all", name,
                                  fmt::join(kKnown, ", ")));
    } else if (std::find(options.against.begin(), options.against.end(), name) ==
               options.against.end()) {
      options.against.push_back(name);
    }
  }
  if (a.rounds < 0) wrong.push_back("--rounds: at least 1");
  options.rounds = a.rounds > 0 ? a.rounds : options.against.empty() ? 1 : kDefaultRounds;
}

double bits_per_second(const std::string& rate) {
  double number = 0;
  const auto [end, error] = std::from_chars(rate.data(), rate.data() + rate.size(), number);
  const std::string unit(static_cast<const char*>(end), rate.data() + rate.size());
  const double scale = unit == "kbit" ? 1e3 : unit == "mbit" ? 1e6 : unit == "gbit" ? 1e9 : 0;
  return error == std::errc{} && number > 0 ? number * scale : 0;
}

}  // namespace

int read_namespaces(const LaunchFlags& launch, const std::string& rate, int ranks_per_host,
                    std::vector<std::string>& wrong) {
  const std::string& text = launch.hosts;
  const bool number = !text.empty() && std::all_of(text.begin(), text.end(),
                                                   [](char c) { return c >= '0' && c <= '9'; });
  int namespaces = 0;
  if (number) {
    std::from_chars(text.data(), text.data() + text.size(), namespaces);
    if (namespaces < 1 || namespaces > kMostNamespaces)
      wrong.push_back(
          fmt::format("--hosts: {} hosts cannot be made; 1 to {}", text, kMostNamespaces));
    if (launch.ranks)
      wrong.push_back("--ranks: hosts that are made have --ranks-per-host ranks each");
  }
  if (ranks_per_host < 1) wrong.push_back("--ranks-per-host: at least 1");
  if (!number && ranks_per_host != 1)
    wrong.push_back("--ranks-per-host: only for hosts that are made (--hosts 4)");
  if (!rate.empty() && !number) wrong.push_back("--rate: only for hosts that are made (--hosts 4)");
  if (!rate.empty() && payload_rate(rate) == 0)
    wrong.push_back(fmt::format("--rate: '{}' is not a rate; write 100mbit or 1gbit", rate));
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
  Wrong wrong;
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
  options.namespaces = read_namespaces(a.launch, a.rate, a.ranks_per_host, wrong);
  options.rate = a.rate;
  if (options.namespaces == 0) static_cast<void>(to_launch_options(a.launch, wrong));
  if (!wrong.empty()) return invalid_argument(fmt::format("{}", fmt::join(wrong, "\n")));
  return options;
}

}  // namespace stormo::cli
