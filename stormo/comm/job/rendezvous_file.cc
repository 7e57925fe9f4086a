#include <stormo/comm/job/rendezvous_file.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <thread>

#include <stormo/transport/net/socket.h>

namespace stormo::comm {
namespace {

constexpr std::string_view kMagic = "stormo-rendezvous 1";
constexpr Duration kPoll = std::chrono::milliseconds(20);

}  // namespace

std::string to_text(const RendezvousTicket& ticket) {
  std::string digits = ticket.secret.to_hex();
  std::string text = fmt::format("{}\n{}\n{}\n", kMagic, ticket.store.text, digits);
  transport::cleanse(digits);
  return text;
}

Result<RendezvousTicket> parse_ticket(const std::string& path, std::string_view text) {
  const std::size_t first = text.find('\n');
  const std::size_t second = first == std::string_view::npos ? first : text.find('\n', first + 1);
  if (second == std::string_view::npos || text.substr(0, first) != kMagic) {
    return Status(Code::kCorrupt, fmt::format("{} is not a rendezvous file; remove it", path));
  }
  RendezvousTicket ticket;
  ticket.store.text = std::string(text.substr(first + 1, second - first - 1));
  std::string_view hex = text.substr(second + 1);
  if (hex.ends_with('\n')) hex.remove_suffix(1);
  STORMO_ASSIGN_OR_RETURN(ticket.secret, transport::Secret::from_hex(hex));
  return ticket;
}

Status write_rendezvous_file(const std::string& path, const RendezvousTicket& ticket) {
  std::string text = to_text(ticket);
  const std::string staged = fmt::format("{}.{}", path, getpid());
  transport::Descriptor fd(open(staged.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool written =
      fd.valid() &&
      write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fsync(fd.get()) == 0;
  transport::cleanse(text);
  // link() refuses to replace: a file of an earlier run must not be mistaken for this one
  if (!written || link(staged.c_str(), path.c_str()) != 0) {
    Status failure =
        errno == EEXIST
            ? invalid_argument(fmt::format("rendezvous file {} exists already: remove it, "
                                           "or give each run its own path",
                                           path))
            : errno_error("writing the rendezvous file " + path);
    unlink(staged.c_str());
    return failure;
  }
  unlink(staged.c_str());
  return {};
}

Result<RendezvousTicket> read_rendezvous_file(const std::string& path, Deadline by) {
  for (;;) {
    transport::Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (fd.valid()) {
      struct stat info {};
      if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
        return invalid_argument(
            fmt::format("rendezvous file {} is no regular file; remove it, or name another", path));
      }
      if (info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
        return Status(Code::kRefused,
                      fmt::format("rendezvous file {} must be yours alone (mode 0600)", path));
      }
      std::string text(1024, '\0');
      const ssize_t n = read(fd.get(), text.data(), text.size());
      if (n < 0) return errno_error("reading the rendezvous file " + path);
      auto ticket = parse_ticket(path, {text.data(), static_cast<std::size_t>(n)});
      transport::cleanse(text);
      return ticket;
    }
    if (errno != ENOENT) return errno_error("opening the rendezvous file " + path);
    if (by.expired()) {
      return Status(
          Code::kDeadlineExceeded,
          fmt::format("rank 0 has not written the rendezvous file {}; is it on a file system "
                      "that all hosts share?",
                      path));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace stormo::comm
