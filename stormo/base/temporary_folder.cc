#include <stormo/base/temporary_folder.h>

#include <stdlib.h>

#include <string>
#include <system_error>

namespace stormo {

Result<TemporaryFolder> TemporaryFolder::create(std::string_view prefix) {
  std::error_code failed;
  const auto where = std::filesystem::temp_directory_path(failed);
  if (failed) return io_error("no folder for temporary files (TMPDIR): " + failed.message());
  std::string path = where / (std::string(prefix) + "-XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) return errno_error("make a folder in " + where.string());
  return TemporaryFolder(path);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // the system cleans what cannot be removed here
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace stormo
