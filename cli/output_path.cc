#include <cli/output_path.h>

#include <fmt/format.h>
#include <sys/stat.h>
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

Status check_output_folder(const std::string& folder, std::span<const char* const> names) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (!fs::exists(folder, failed)) {
    const fs::path path(folder);
    return check_output_path(path.has_filename() ? folder : path.parent_path().string());
  }
  if (!fs::is_directory(folder, failed)) {
    return invalid_argument(folder + ": it is a file; give the path of a folder");
  }
  for (const char* name : names) {
    STORMO_RETURN_IF_ERROR(check_output_path((fs::path(folder) / name).string()));
  }
  return {};
}

void set_access(const std::string& access) {
  if (access == "owner") ::umask(077);
  if (access == "group") ::umask(007);
  if (access == "everyone") ::umask(022);
}

void restrict_access_as(const std::string& source) {
  struct stat info {};
  if (::stat(source.c_str(), &info) != 0) return;
  const mode_t before = ::umask(077);
  const mode_t denied = ~info.st_mode & 066;
  ::umask(before | denied | (denied & 044) >> 2);  // a folder that cannot be read is not entered
}

}  // namespace stormo::cli
