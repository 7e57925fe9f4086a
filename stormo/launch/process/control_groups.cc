#include <stormo/launch/process/control_groups.h>

#include <fstream>
#include <sstream>

#include <stormo/base/file.h>

namespace stormo::launch {

namespace fs = std::filesystem;

// Lines are "ID:CONTROLLERS:PATH"; version 2 has none of controllers.
std::vector<fs::path> control_groups(const std::string& controller, const fs::path& root) {
  std::vector<fs::path> folders;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::size_t a = line.find(':');
    const std::size_t b = line.find(':', a + 1);
    if (b == std::string::npos) continue;
    const std::string controllers = "," + line.substr(a + 1, b - a - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find("," + controller + ",") == std::string::npos) continue;
    const fs::path base = root / "sys/fs/cgroup" / (v2 ? "" : controller);
    for (fs::path at = line.substr(b + 1);; at = at.parent_path()) {
      folders.push_back(base / at.relative_path());
      if (at.empty() || at == at.root_path()) break;
    }
  }
  return folders;
}

std::optional<std::uint64_t> control_group_limit(const std::string& controller,
                                                 const std::string& v2_file,
                                                 const std::string& v1_file, const fs::path& root) {
  constexpr std::uint64_t kNone = 1ull << 60;  // version 1 writes "no limit" as a number near 2^63
  std::optional<std::uint64_t> least;
  for (const fs::path& folder : control_groups(controller, root)) {
    for (const std::string& file : {v2_file, v1_file}) {
      std::uint64_t limit = 0;
      std::istringstream text(first_line(folder / file));
      if (text >> limit && limit < least.value_or(kNone)) least = limit;
    }
  }
  return least;
}

}  // namespace stormo::launch
