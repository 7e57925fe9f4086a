// Forks of a loaded program.
//
// Idea: the launcher sends a request for each process over a socket: environment, place, and the
// descriptors themselves. The server forks a process that forks the wanted one and ends. So the
// wanted process is an orphan, and the launcher adopts it: it waits for it as for any child, and
// the kernel kills it with the launcher.
#include <stormo/launch/process/fork_server.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <list>
#include <span>
#include <string>
#include <vector>

#include <stormo/launch/process/place.h>

namespace stormo::launch {
namespace {

/// Its value is the server's end of the socket, and room for the variables of a rank.
constexpr const char* kControlVariable = "STORMO_FORK_SERVER";
constexpr std::size_t kRoom = 16 * 1024;
/// A terminal sends them to the launcher, too, which decides.
constexpr int kOfTerminals[] = {SIGINT, SIGQUIT};
constexpr useconds_t kAdoptionPollUs = 50;
constexpr int kMaxLoadingMs = 10'000;

/// Then come the arguments and the environment, each text with a 0 behind it.
struct Request {
  pid_t launcher = 0;
  Place place;         ///< without descriptors: those come with the request, in this order
  int inherited = -1;  ///< number of a fourth one; -1: none
  std::size_t arguments_bytes = 0, environment_bytes = 0;
};

struct Reply {
  pid_t pid = 0;  ///< of the process; 0: there is none
  int error = 0;
  std::array<char, 32> what = {};
};

constexpr std::size_t kMaxDescriptors = 4;
using Control = std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))>;

bool write_all(int fd, const void* data, std::size_t size) {
  for (const char* p = static_cast<const char*>(data); size > 0;) {
    const ssize_t n = ::send(fd, p, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool read_all(int fd, void* data, std::size_t size) {
  for (char* p = static_cast<char*>(data); size > 0;) {
    const ssize_t n = ::recv(fd, p, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool send_request(int control, const Request& request, const std::vector<int>& descriptors,
                  const std::string& texts) {
  Request header = request;
  iovec data{&header, sizeof header};
  alignas(cmsghdr) Control buffer{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = buffer.data();
  message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
  cmsghdr* const attached = CMSG_FIRSTHDR(&message);
  attached->cmsg_level = SOL_SOCKET;
  attached->cmsg_type = SCM_RIGHTS;
  attached->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(attached), descriptors.data(), descriptors.size() * sizeof(int));
  ssize_t n = 0;
  do n = ::sendmsg(control, &message, MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(sizeof header) && write_all(control, texts.data(), texts.size());
}

/// A request as the server has it.
struct Received {
  Request request;
  std::vector<Descriptor> descriptors;
  std::string arguments, environment;
};

/// False: the launcher wants no more.
bool receive_request(int control, Received& out) {
  iovec data{&out.request, sizeof out.request};
  alignas(cmsghdr) Control buffer{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = buffer.data();
  message.msg_controllen = buffer.size();
  ssize_t n = 0;
  do n = ::recvmsg(control, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  while (n < 0 && errno == EINTR);
  if (n != static_cast<ssize_t>(sizeof out.request)) return false;
  if (const cmsghdr* attached = CMSG_FIRSTHDR(&message); attached != nullptr) {
    std::array<int, kMaxDescriptors> numbers{};
    const std::size_t bytes = attached->cmsg_len - CMSG_LEN(0);
    std::memcpy(numbers.data(), CMSG_DATA(attached), bytes);
    for (std::size_t i = 0; i < bytes / sizeof(int); ++i) out.descriptors.emplace_back(numbers[i]);
  }
  out.arguments.resize(out.request.arguments_bytes);
  out.environment.resize(out.request.environment_bytes);
  return read_all(control, out.arguments.data(), out.arguments.size()) &&
         read_all(control, out.environment.data(), out.environment.size());
}

[[noreturn]] void give_up(int control, const char* what) {
  Reply reply{.error = errno};
  std::strncpy(reply.what.data(), what, reply.what.size() - 1);
  write_all(control, &reply, sizeof reply);
  ::_exit(127);
}

/// Where the kernel has put the environment of this process; /proc shows it from there.
std::span<char> environment_area() {
  char* const begin = *environ;
  char* end = begin;
  for (char** e = environ; *e == end; ++e) end += std::strlen(*e) + 1;
  return {begin, end};
}

std::string joined(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += text + '\0';
  return out;
}

/// A copy that stays until the end of the process.
std::span<char> keep(const std::string& texts) {
  static std::list<std::string> kept;
  return kept.emplace_back(texts);
}

/// Pointers to joined texts, as main() gets them; they stay, too.
char** texts_in(std::span<char> joined_texts) {
  static std::list<std::vector<char*>> kept;
  std::vector<char*>& pointers = kept.emplace_back();
  for (std::size_t at = 0; at < joined_texts.size(); at += std::strlen(&joined_texts[at]) + 1)
    pointers.push_back(&joined_texts[at]);
  pointers.push_back(nullptr);
  return pointers.data();
}

/// Into the area, if it has room.
void set_environment(const std::string& assignments, std::span<char> area) {
  if (area.size() < assignments.size()) area = keep(assignments);
  std::ranges::fill(std::ranges::copy(assignments, area.begin()).out, area.end(), '\0');
  environ = texts_in(area.first(assignments.size()));
}

/// The wanted process, which `between` has forked.
void become(Received& received, pid_t between, int control) {
  const std::span<char> area = environment_area();
  while (::getppid() == between) ::usleep(kAdoptionPollUs);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != received.request.launcher) {
    errno = ECHILD;
    give_up(control, "be adopted");
  }
  Place place = received.request.place;
  place.input = received.descriptors[0].get();
  place.output = received.descriptors[1].get();
  place.error = received.descriptors[2].get();
  if (const char* failed = take_place(place)) give_up(control, failed);
  if (const int number = received.request.inherited; number >= 0) {
    const int given = received.descriptors[3].release();
    if (control == number) control = ::fcntl(control, F_DUPFD_CLOEXEC, number + 1);
    for (Descriptor& d : received.descriptors) d.reset();  // one of them may have the number
    if (given == number ? ::fcntl(number, F_SETFD, 0) != 0 : ::dup2(given, number) < 0)
      give_up(control, "dup2");
    if (given != number) ::close(given);
  }
  for (const int s : kOfTerminals) ::signal(s, SIG_DFL);
  set_environment(received.environment, area);
  const Reply reply{.pid = ::getpid()};
  if (!write_all(control, &reply, sizeof reply)) ::_exit(127);
  ::close(control);
}

/// True in the wanted process.
bool fork_one(Received& received, int control) {
  const pid_t between = ::fork();
  if (between != 0) {
    if (between < 0) {
      const Reply reply{.error = errno, .what = {"fork"}};
      write_all(control, &reply, sizeof reply);
    } else {
      ::waitpid(between, nullptr, 0);
    }
    return false;
  }
  const pid_t self = ::getpid();
  const pid_t wanted = ::fork();
  if (wanted < 0) give_up(control, "fork");
  if (wanted > 0) ::_exit(0);
  become(received, self, control);
  return true;
}

bool has_one_thread() {
  std::error_code error;
  const std::filesystem::directory_iterator threads("/proc/self/task", error);
  return !error && std::distance(begin(threads), end(threads)) == 1;
}

}  // namespace

Result<std::unique_ptr<ForkServer>> ForkServer::start(Child program) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return errno_error("socketpair");
  Descriptor own(ends[0]);
  Descriptor other(ends[1]);
  const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) return errno_error("open /dev/null");
  program.output = program.error = null.get();
  program.inherited = other.get();
  program.environment.push_back(
      fmt::format("{}={} {}", kControlVariable, other.get(), std::string(kRoom, '.')));
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return errno_error("adopt orphans");
  STORMO_ASSIGN_OR_RETURN(const pid_t pid, launch::spawn(program));
  std::unique_ptr<ForkServer> server(new ForkServer(pid, std::move(own)));
  other.reset();
  pollfd readable{server->control_.get(), POLLIN, 0};
  if (::poll(&readable, 1, kMaxLoadingMs) == 0) {
    return Status(Code::kDeadlineExceeded,
                  fmt::format("'{}' was not loaded after {} ms", program.file, kMaxLoadingMs));
  }
  char loaded = 0;
  if (read_all(server->control_.get(), &loaded, sizeof loaded)) return server;
  return Status(Code::kPeerLost, fmt::format("'{}' ended while it was loaded", program.file));
}

void ForkServer::end() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  forget_child(std::exchange(pid_, 0));
}

Result<pid_t> ForkServer::spawn(const Child& child) {
  const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) return errno_error("open /dev/null");
  const auto or_else = [](int fd, int otherwise) { return fd >= 0 ? fd : otherwise; };
  std::vector<int> descriptors = {or_else(child.input, null.get()),
                                  or_else(child.output, STDOUT_FILENO),
                                  or_else(child.error, STDERR_FILENO)};
  if (child.inherited) descriptors.push_back(*child.inherited);
  const std::string arguments = joined(child.argv), environment = joined(child.environment);
  const Request request{
      .launcher = ::getpid(),
      .place = {.group = child.group, .bind = !child.cpus.empty(), .cpus = to_cpu_set(child.cpus)},
      .inherited = child.inherited.value_or(-1),
      .arguments_bytes = arguments.size(),
      .environment_bytes = environment.size()};
  Reply reply;
  if (!send_request(control_.get(), request, descriptors, arguments + environment) ||
      !read_all(control_.get(), &reply, sizeof reply)) {
    return Status(Code::kPeerLost, "the process that forks ranks has ended");
  }
  if (reply.pid > 0) {
    note_child(reply.pid);
    return reply.pid;
  }
  errno = reply.error;
  return errno_error(reply.what.data());
}

void serve_forks(int& argc, char**& argv) {
  const char* const number = std::getenv(kControlVariable);
  if (number == nullptr) return;
  const int control = std::atoi(number);
  for (const int s : kOfTerminals) ::signal(s, SIG_IGN);
  const char loaded = 1;
  if (!has_one_thread() || !write_all(control, &loaded, sizeof loaded)) ::_exit(1);
  for (Received received; receive_request(control, received); received = {}) {
    if (!fork_one(received, control)) continue;
    argv = texts_in(keep(received.arguments));
    argc = static_cast<int>(std::ranges::count(received.arguments, '\0'));
    return;
  }
  ::_exit(0);
}

}  // namespace stormo::launch
