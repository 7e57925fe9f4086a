#include <stormo/comm/job/host_rendezvous.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <thread>

#include <stormo/comm/job/private_folder.h>

namespace stormo::comm {
namespace {

using transport::Descriptor;

constexpr Duration kPollOfHosts = std::chrono::milliseconds(10);
constexpr std::size_t kMaxText = 1024;
/// A file that is not complete yet.
constexpr std::string_view kStaged = ".new";
/// Who lives has locked it long before.
constexpr std::time_t kStagedSeconds = 60;

/// An open file description's lock, not a process's: gone when its last descriptor is, and seen by
/// other descriptors of the same process.
struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// Whether the writer of the file lives.
bool is_held(const Descriptor& file) {
  struct flock lock = whole_file();
  return fcntl(file.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

Result<RendezvousTicket> read_ticket(const Descriptor& file, const std::string& path) {
  std::string text(kMaxText, '\0');
  const ssize_t n = pread(file.get(), text.data(), text.size(), 0);
  if (n < 0) return errno_error("reading " + path);
  auto ticket = parse_ticket(path, {text.data(), static_cast<std::size_t>(n)});
  transport::cleanse(text);
  return ticket;
}

Descriptor open_existing(const std::string& path) {
  return Descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
}

/// What a killed job of the same name left: its file is replaced, its socket would stay.
void remove_old_socket(const Descriptor& file, const std::string& path) {
  const auto old = read_ticket(file, path);
  const std::string mine = "unix:" + path + ".";
  if (old.ok() && old->store.text.starts_with(mine)) unlink(old->store.text.c_str() + 5);
}

/// What a rank 0 left that was killed before its file had its name, which nobody else would
/// replace: the staged file and its socket.
void remove_staged(const std::string& folder) {
  std::error_code ignored;
  for (std::filesystem::directory_iterator it(folder, ignored), end; it != end;
       it.increment(ignored)) {
    const std::string path = it->path();
    if (!path.ends_with(kStaged)) continue;
    const Descriptor file = open_existing(path);
    struct stat info {};
    if (!file.valid() || is_held(file) || fstat(file.get(), &info) != 0 ||
        std::time(nullptr) - info.st_mtime < kStagedSeconds) {
      continue;
    }
    unlink(path.substr(0, path.size() - kStaged.size()).c_str());
    unlink(path.c_str());
  }
}

}  // namespace

Result<std::unique_ptr<HostRendezvous>> HostRendezvous::open(
    const std::vector<std::string>& folders, const std::string& name) {
  STORMO_ASSIGN_OR_RETURN(const std::string folder, private_folder(folders));
  remove_staged(folder);
  std::unique_ptr<HostRendezvous> made(new HostRendezvous);
  made->path_ = folder + "/" + name;
  made->socket_path_ =
      fmt::format("{}.{}", made->path_, transport::Secret::random().to_hex().substr(0, 8));
  if (const Descriptor old = open_existing(made->path_); old.valid()) {
    if (is_held(old)) {
      return invalid_argument(
          fmt::format("another job holds {}: give each job on this host its own id (torchrun "
                      "--rdzv-id or --master-port), or STORMO_RENDEZVOUS=file:PATH",
                      made->path_));
    }
    remove_old_socket(old, made->path_);
  }
  return made;
}

HostRendezvous::~HostRendezvous() {
  if (locked_.valid()) unlink(path_.c_str());
}

Status HostRendezvous::publish(const RendezvousTicket& ticket) {
  // complete and locked before it has its name: a reader never sees less
  const std::string staged = socket_path_ + std::string(kStaged);
  Descriptor file(::open(staged.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return errno_error("creating " + staged);
  std::string text = to_text(ticket);
  struct flock lock = whole_file();
  const bool ready =
      fcntl(file.get(), F_OFD_SETLK, &lock) == 0 &&
      write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      rename(staged.c_str(), path_.c_str()) == 0;
  const Status failure = ready ? Status() : errno_error("writing " + path_);
  transport::cleanse(text);
  if (ready) {
    locked_ = std::move(file);
  } else {
    unlink(staged.c_str());
  }
  return failure;
}

Result<RendezvousTicket> read_host_rendezvous(const std::vector<std::string>& folders,
                                              const std::string& name, Deadline by) {
  STORMO_ASSIGN_OR_RETURN(const std::string folder, private_folder(folders));
  const std::string path = folder + "/" + name;
  for (;;) {
    const Descriptor file = open_existing(path);
    if (!file.valid() && errno != ENOENT) return errno_error("opening " + path);
    if (file.valid() && is_held(file)) return read_ticket(file, path);
    if (by.expired()) {
      return Status(Code::kDeadlineExceeded,
                    fmt::format("rank 0 has not written {}; did it start, on this host and with "
                                "the same XDG_RUNTIME_DIR?",
                                path));
    }
    std::this_thread::sleep_for(kPollOfHosts);
  }
}

}  // namespace stormo::comm
