#include <cli/output_path.h>

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

namespace stormo::cli {

Status check_output_path(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const std::string shown = folder.empty() ? "." : folder.string();
  if (::access(shown.c_str(), W_OK) == 0 && !std::filesystem::is_directory(path)) return {};
  return invalid_argument(
      fmt::format("{}: cannot write a file there; give a path in a folder that exists and is "
                  "writable",
                  path));
}

}  // namespace stormo::cli
