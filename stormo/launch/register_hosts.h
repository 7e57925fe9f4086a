#pragma once

#include <algorithm>
#include <optional>
#include <vector>

namespace stormo::launch {

/// The launcher's host, where the job has no ranks there.
inline constexpr int kLauncherHost = -1;

/// Which of `hosts` have an acceptor of the register of an elastic job, in its order: three where
/// there are as many, that of the launcher counted, else the launcher's. Two would be worse than
/// one: the loss of either would stop the register. `launcher`: which of them is its host; empty:
/// another one.
inline std::vector<int> register_hosts(int hosts, std::optional<int> launcher) {
  constexpr int kMost = 3;
  std::vector<int> all;
  for (int i = 0; i < std::min(hosts, kMost); ++i) all.push_back(i);
  if (hosts == kMost - 1 && !launcher) all.push_back(kLauncherHost);
  return all.size() == kMost ? all : std::vector<int>{launcher.value_or(kLauncherHost)};
}

}  // namespace stormo::launch
