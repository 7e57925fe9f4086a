#include <stormo/launch/process/sibling_ranks.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>

#include <stormo/base/file.h>
#include <stormo/base/proc.h>
#include <stormo/base/text.h>

namespace stormo::launch {
namespace {

namespace fs = std::filesystem;

struct RankVariable {
  std::string_view source, name;
};
constexpr std::array<RankVariable, 5> kRankVariables = {{{"stormo", "STORMO_RANK"},
                                                         {"torchrun", "RANK"},
                                                         {"slurm", "SLURM_PROCID"},
                                                         {"openmpi", "OMPI_COMM_WORLD_RANK"},
                                                         {"mpich", "PMI_RANK"}}};

fs::path folder_of(pid_t process) { return fs::path("/proc") / std::to_string(process); }

std::string environment_of(pid_t process) {
  std::ifstream file(folder_of(process) / "environ", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::uint64_t memory_of(pid_t process) {
  std::istringstream pages(first_line(folder_of(process) / "statm"));
  std::uint64_t all = 0, resident = 0;
  pages >> all >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  const fs::path threads = folder_of(parent) / "task";
  for (const pid_t thread : numbers_in(threads)) {
    std::istringstream listed(first_line(threads / std::to_string(thread) / "children"));
    for (pid_t child = 0; listed >> child;) children.push_back(child);
  }
  return children;
}

/// Nothing when it has ended.
std::optional<SiblingRank> look_at(pid_t process, int rank) {
  const std::optional<ProcessState> state = process_state(folder_of(process));
  if (!state || state->letter == 'Z' || state->letter == 'X') return std::nullopt;
  return SiblingRank{rank, process, state->letter, memory_of(process)};
}

}  // namespace

std::string_view variable_in(std::string_view environment, std::string_view name) {
  for (const std::string_view entry : split(environment, '\0')) {
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return {};
}

std::vector<SiblingRank> sibling_ranks(std::string_view source) {
  const auto variable = std::ranges::find(kRankVariables, source, &RankVariable::source);
  std::vector<SiblingRank> ranks;
  const auto add = [&](pid_t process, std::optional<int> rank) {
    const auto seen = rank ? look_at(process, *rank) : std::nullopt;
    if (seen) ranks.push_back(*seen);
  };
  if (variable == kRankVariables.end()) {
    add(::getpid(), 0);
    return ranks;
  }
  for (const pid_t process : children_of(::getppid())) {
    add(process, number_in<int>(variable_in(environment_of(process), variable->name)));
  }
  std::ranges::sort(ranks, {}, &SiblingRank::rank);
  return ranks;
}

}  // namespace stormo::launch
