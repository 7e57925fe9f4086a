#include <stormo/base/replace_file.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include <stormo/base/file.h>

namespace stormo {
namespace {

bool write_whole(const std::filesystem::path& path,
                 const std::function<void(std::ostream&)>& write) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  write(file);
  file.close();
  return static_cast<bool>(file);
}

}  // namespace

Status replace_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
  namespace fs = std::filesystem;
  const Status failure = io_error("cannot write '" + path + "'");
  std::error_code failed, ignored;
  fs::path target = path;
  if (fs::exists(target, failed)) {
    if (!fs::is_regular_file(target, failed))
      return write_whole(target, write) ? Status() : failure;
    target = fs::canonical(target, failed);
  }
  if (failed) return failure;
  fs::path staged = target;
  staged += ".new";
  if (write_whole(staged, write) && sync_path(staged).ok()) {
    fs::rename(staged, target, failed);
    const fs::path folder = target.parent_path();
    if (!failed) {
      static_cast<void>(
          sync_path(folder.empty() ? "." : folder.string()));  // best effort: it is there
      return {};
    }
  }
  fs::remove(staged, ignored);
  return failure;
}

}  // namespace stormo
