#include <stormo/comm/job/host_socket.h>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <string_view>

#include <stormo/comm/job/private_folder.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>

namespace stormo::comm {
namespace {

constexpr std::string_view kBeginning = "world.";
/// Who is about to listen does so long before.
constexpr std::time_t kOldSeconds = 60;

bool nobody_listens(const std::string& path) {
  const auto address = transport::unix_address(path);
  if (!address.ok()) return false;
  const Descriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return fd.valid() &&
         connect(fd.get(), reinterpret_cast<const sockaddr*>(&address->storage), address->length) !=
             0 &&
         errno == ECONNREFUSED;
}

/// What a rank left that was killed while it joined.
void remove_old(const std::string& folder) {
  std::error_code ignored;
  for (std::filesystem::directory_iterator it(folder, ignored), end; it != end;
       it.increment(ignored)) {
    const std::string path = it->path();
    struct stat info {};
    const bool old = it->path().filename().string().starts_with(kBeginning) &&
                     lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode) &&
                     std::time(nullptr) - info.st_mtime >= kOldSeconds;
    if (old && nobody_listens(path)) unlink(path.c_str());
  }
}

}  // namespace

Result<std::unique_ptr<HostSocket>> HostSocket::open(const std::vector<std::string>& folders) {
  STORMO_ASSIGN_OR_RETURN(const std::string folder, private_folder(folders));
  remove_old(folder);
  std::string path = fmt::format("{}/{}{}", folder, kBeginning,
                                 transport::Secret::random().to_hex().substr(0, 16));
  STORMO_ASSIGN_OR_RETURN(Descriptor listener, transport::listen_unix(path));
  return std::unique_ptr<HostSocket>(new HostSocket(std::move(path), std::move(listener)));
}

HostSocket::~HostSocket() { unlink(path_.c_str()); }

Result<std::vector<Descriptor>> HostSocket::connected() {
  std::vector<Descriptor> all;
  for (;;) {
    transport::SocketAddress unused;
    STORMO_ASSIGN_OR_RETURN(Descriptor fd, transport::accept_from(listener_.get(), &unused));
    if (!fd.valid()) return all;
    if (transport::check_same_user(fd.get()).ok()) all.push_back(std::move(fd));
  }
}

Result<Descriptor> connect_to_host_socket(const std::string& path) {
  const std::filesystem::path parts(path);
  if (!parts.is_absolute() || !parts.filename().string().starts_with(kBeginning)) {
    return Status(Code::kRefused, fmt::format("'{}' is no socket of a rank", path));
  }
  STORMO_RETURN_IF_ERROR(check_private(parts.parent_path()));
  STORMO_ASSIGN_OR_RETURN(const transport::SocketAddress address, transport::unix_address(path));
  STORMO_ASSIGN_OR_RETURN(Descriptor fd, transport::start_connect(address));
  STORMO_RETURN_IF_ERROR(transport::check_same_user(fd.get()).within(path));
  return fd;
}

}  // namespace stormo::comm
