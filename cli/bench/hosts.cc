#include <cli/bench/hosts.h>

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include <cli/bench/child.h>

namespace stormo::cli {

Result<BenchHosts> BenchHosts::create(const std::string& tool, int count, const std::string& rate) {
  const std::string name = fmt::format("b{}", ::getpid() % 1'000'000);
  ChildCommand up{{tool, "up", std::to_string(count), "--name", name}, {}};
  if (!rate.empty()) up.words.insert(up.words.end(), {"--rate", rate});
  STORMO_ASSIGN_OR_RETURN(const ChildOutcome made, run_child(up));
  if (made.status == 0) return BenchHosts(tool, name, count);
  return invalid_argument(fmt::format("--hosts {}: {}", count, tail_of(made.err)));
}

BenchHosts::BenchHosts(BenchHosts&& other) noexcept
    : tool_(other.tool_), name_(std::exchange(other.name_, {})), count_(other.count_) {}

BenchHosts::~BenchHosts() {
  if (name_.empty()) return;
  const auto gone = run_child({{tool_, "down", "--name", name_}, {}});
  if (!gone.ok() || gone->status != 0)
    fmt::print(stderr, "stormo bench: the hosts stay; take them away by: {} down --name {}\n",
               tool_, name_);
}

void BenchHosts::describe(int ranks, LaunchFlags& flags) const {
  flags.hosts.clear();
  for (int i = 1; i <= count_; ++i)
    flags.hosts += fmt::format("{}{}-{}:{}", i == 1 ? "" : ",", name_, i, ranks);
  flags.interface = name_ + "br,eth0";
  flags.remote_shell = tool_ + " exec {host}";
}

}  // namespace stormo::cli
