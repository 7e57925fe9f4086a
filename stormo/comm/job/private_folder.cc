#include <stormo/comm/job/private_folder.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include <stormo/base/descriptor.h>

namespace stormo::comm {

Status check_private(const std::string& folder) {
  struct stat info {};
  const std::string parent = std::filesystem::path(folder).parent_path();
  if (stat(parent.c_str(), &info) != 0) return errno_error(parent);
  if ((info.st_mode & 022) != 0 && (info.st_mode & S_ISVTX) == 0) {
    return {Code::kRefused, fmt::format("{}: others may rename what is in {}", folder, parent)};
  }
  const Descriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return errno_error(folder);
  if (info.st_uid != geteuid()) {
    return {Code::kRefused, fmt::format("{}: belongs to user {}", folder, info.st_uid)};
  }
  if ((info.st_mode & 077) == 0) return {};
  return {Code::kRefused, fmt::format("{}: others may enter it (mode {:04o}, wanted 0700)", folder,
                                      info.st_mode & 07777)};
}

Result<std::string> private_folder(const std::vector<std::string>& folders) {
  std::string reasons;
  for (const std::string& folder : folders) {
    const bool there = mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST;
    const Status usable = there ? check_private(folder) : errno_error(folder);
    if (usable.ok()) return folder;
    reasons += "\n  " + usable.message();
  }
  return Status(
      Code::kRefused,
      fmt::format("the ranks of this host need a folder that only this user can enter, to "
                  "meet in:{}\n  remedy: set XDG_RUNTIME_DIR to a folder of yours (mode "
                  "0700), or STORMO_RENDEZVOUS=file:PATH",
                  reasons));
}

}  // namespace stormo::comm
