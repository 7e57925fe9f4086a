#include <stormo/server/message/place.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace stormo::server {

Place Place::own() {
  Place place{.host = {}, .process = transport::ProcessName::own()};
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string id;
  struct stat network {};
  if (std::getline(boot, id) && ::stat("/proc/self/ns/net", &network) == 0) {
    place.host = fmt::format("{} {}", id, network.st_ino);
  }
  return place;
}

bool Place::is_same_host(const Place& other) const {
  return !host.empty() && host == other.host && process.pid != 0 && other.process.pid != 0 &&
         process.pid_namespace == other.process.pid_namespace;
}

Result<transport::MemoryFile> map_file_of(const Place& owner, int fd, std::uint64_t bytes) {
  const std::string process = fmt::format("/proc/{}", owner.process.pid);
  struct stat info {};
  const bool is_near = Place::own().is_same_host(owner) && ::stat(process.c_str(), &info) == 0 &&
                       info.st_uid == ::geteuid();
  Descriptor own(is_near ? ::open(fmt::format("{}/fd/{}", process, fd).c_str(), O_RDWR | O_CLOEXEC)
                         : -1);
  if (!own.valid() || transport::PeerProcess(owner.process).is_gone()) {
    return Status(Code::kNotFound,
                  fmt::format("process {} does not share memory with this one", owner.process.pid));
  }
  return transport::MemoryFile::map(std::move(own), bytes);
}

}  // namespace stormo::server
