// How a rank outlives its launcher.
//
// Idea: all that ties a rank to its launcher can be undone by the rank itself. It clears the signal
// that the kernel sends at the parent's death; it opens the writing end of the guard's pipe through
// /proc, so that the guard waits for it, too; and it holds the reading ends of its own output: so a
// write never fails, and what the launcher had not read can be read here.
#include <stormo/launch/process/outlive.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

#include <stormo/base/clock.h>
#include <stormo/launch/process/spawn.h>

namespace stormo::launch {
namespace {

/// For a guard that was forked a moment ago.
constexpr Duration kGuardBegins = std::chrono::seconds(5);
constexpr std::array kStreams = {std::pair(STDOUT_FILENO, ".out"),
                                 std::pair(STDERR_FILENO, ".err")};

/// It has this name once the pipe is its standard input.
bool is_guard(pid_t pid) {
  std::string name;
  std::ifstream(fmt::format("/proc/{}/comm", pid)) >> name;
  return name == kGuardName;
}

Descriptor reader_of_pipe(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISFIFO(info.st_mode)) return {};
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  return Descriptor(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

/// Until the pipe is empty.
void copy_all(const Descriptor& from, const Descriptor& to) {
  std::array<char, 64 * 1024> buffer;
  for (ssize_t n = 0; (n = ::read(from.get(), buffer.data(), buffer.size())) > 0;) {
    [[maybe_unused]] const ssize_t written = ::write(to.get(), buffer.data(), std::size_t(n));
  }
}

/// Where nothing can be written, output is dropped: it must not stop the rank.
Descriptor open_output(const std::string& path) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  return file.valid() ? std::move(file) : Descriptor(::open("/dev/null", O_WRONLY | O_CLOEXEC));
}

/// Another writing end of the pipe for whose end the guard that leads process group `group` waits:
/// it does not end the job while this one is open.
Result<Descriptor> open_lifeline(pid_t group) {
  const Deadline by = Deadline::after(kGuardBegins);
  while (!is_guard(group)) {
    if (by.expired()) return io_error(fmt::format("process {} is no guard of a job", group));
    ::poll(nullptr, 0, 1);
  }
  const std::string path = fmt::format("/proc/{}/fd/0", group);
  Descriptor end(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));  // it waits for nobody
  if (!end.valid()) return errno_error("open the pipe of the job's guard");
  return end;
}

}  // namespace

Result<std::unique_ptr<Outliving>> Outliving::begin(Options options) {
  std::unique_ptr<Outliving> made(new Outliving(std::move(options)));
  STORMO_RETURN_IF_ERROR(made->prepare());
  if (made->options_.is_orphan) {
    made->move_output();
    made->options_.on_orphaned();
  } else {
    made->thread_ = std::thread([self = made.get()] { self->wait(); });
  }
  return made;
}

Status Outliving::prepare() {
  STORMO_ASSIGN_OR_RETURN(parent_, open_process(::getppid()));
  STORMO_ASSIGN_OR_RETURN(lifeline_, open_lifeline(::getpgrp()));
  for (std::size_t i = 0; i < kStreams.size(); ++i) unread_[i] = reader_of_pipe(kStreams[i].first);
  stop_ = Descriptor(::eventfd(0, EFD_CLOEXEC));
  if (!stop_.valid()) return errno_error("eventfd");
  if (::prctl(PR_SET_PDEATHSIG, 0) != 0) return errno_error("prctl");
  return {};
}

Outliving::~Outliving() {
  if (!thread_.joinable()) return;
  (void)::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void Outliving::wait() {
  std::array<pollfd, 2> fds = {pollfd{parent_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  while (::poll(fds.data(), fds.size(), -1) < 0 && errno == EINTR) {
  }
  if (fds[0].revents == 0) return;
  move_output();
  options_.on_orphaned();
}

// What others were writing meanwhile is in the pipe by the second look.
void Outliving::move_output() {
  for (std::size_t i = 0; i < kStreams.size(); ++i) {
    if (!unread_[i].valid()) continue;
    const auto [fd, suffix] = kStreams[i];
    const Descriptor file = open_output(options_.output + suffix);
    copy_all(unread_[i], file);
    ::dup2(file.get(), fd);
    copy_all(unread_[i], file);
  }
}

// It holds the guard's pipe.
bool is_outliving(pid_t process) {
  std::error_code error;
  const auto pipe =
      std::filesystem::read_symlink(fmt::format("/proc/{}/fd/0", ::getpgid(process)), error);
  if (error) return false;
  std::filesystem::directory_iterator entry(fmt::format("/proc/{}/fd", process), error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code is_closed;
    if (std::filesystem::read_symlink(entry->path(), is_closed) == pipe) return true;
  }
  return false;
}

}  // namespace stormo::launch
