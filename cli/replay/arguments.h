#pragma once

#include <string>
#include <vector>

namespace stormo::cli {

/// The words of `stormo replay`.
struct ReplayArguments {
  std::string directory;
  std::vector<std::string> overrides;
  bool json = false;
};

/// `stormo replay`; returns the exit code.
int run_replay(const ReplayArguments& a);

}  // namespace stormo::cli
