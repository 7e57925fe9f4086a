#pragma once

#include <filesystem>
#include <string>

namespace stormo::testing {

// No path is compiled in, so that compiler caches serve all clones of the repository.

/// The folder of the running program, which has all programs of the build.
inline std::filesystem::path program_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

/// A program of the build.
inline std::string built(const std::string& name) { return program_folder() / name; }

/// The repository that was built.
inline std::filesystem::path repository() {
  return std::filesystem::canonical(program_folder() / "source");
}

}  // namespace stormo::testing
