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
#include <sys/resource.h>
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
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/launch/process/descriptors.h>
#include <stormo/launch/process/place.h>
#include <stormo/launch/process/signals.h>
#include <stormo/transport/net/pass_descriptors.h>

namespace stormo::launch {
namespace {

/// Its value is the server's end of the socket, and room for the variables of a rank.
constexpr const char* kControlVariable = "STORMO_FORK_SERVER";
constexpr std::size_t kRoom = 4096;
constexpr useconds_t kAdoptionPollUs = 50;
constexpr Duration kPatience = std::chrono::seconds(10);
constexpr int kLookMs = 100;  // for signals

/// The descriptors that come with a request, in this order.
enum Passed : std::size_t { kOutcome, kInput, kOutput, kError, kInherited };

/// Then come the arguments and the environment, each text with a 0 behind it.
struct Request {
  pid_t launcher = 0;
  Place place;         ///< without descriptors
  int inherited = -1;  ///< number of the fifth one; -1: none
  rlimit files = {};   ///< how many may be open
  std::size_t arguments_bytes = 0, environment_bytes = 0;
};

/// Waits until the other side has done something, at most until `by`.
Status wait_for(int fd, short events, Deadline by) {
  pollfd waiting{fd, events, 0};
  while (::poll(&waiting, 1, kLookMs) <= 0) {
    if (end_is_wanted()) return {Code::kInterrupted, "interrupted while processes were started"};
    if (by.expired())
      return {Code::kDeadlineExceeded,
              "the process that forks others has not answered for 10 s; is it stopped?"};
  }
  return {};
}

/// The descriptor of a launcher does not block.
Status write_all(int fd, std::string_view text, Deadline by) {
  while (!text.empty()) {
    STORMO_RETURN_IF_ERROR(wait_for(fd, POLLOUT, by));
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR && errno != EAGAIN) return errno_error("send a request");
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
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

Status send_request(int control, const Request& request, const std::vector<int>& descriptors,
                    const std::string& texts, Deadline by) {
  const auto bytes = std::as_bytes(std::span(&request, 1));
  if (transport::send_with_descriptors(control, bytes, descriptors) !=
      static_cast<ssize_t>(bytes.size()))
    return errno_error("send a request");
  return write_all(control, texts, by);
}

/// A request as the server has it.
struct Received {
  Request request;
  std::vector<Descriptor> descriptors;
  std::string arguments, environment;
};

/// False: the launcher wants no more.
bool receive_request(int control, Received& out) {
  const auto bytes = std::as_writable_bytes(std::span(&out.request, 1));
  if (transport::receive_with_descriptors(control, bytes, MSG_WAITALL, out.descriptors) !=
      static_cast<ssize_t>(bytes.size()))
    return false;
  if (out.descriptors.size() != (out.request.inherited >= 0 ? kInherited + 1 : kInherited))
    return false;
  out.arguments.resize(out.request.arguments_bytes);
  out.environment.resize(out.request.environment_bytes);
  return read_all(control, out.arguments.data(), out.arguments.size()) &&
         read_all(control, out.environment.data(), out.environment.size());
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

/// A copy that stays until the end of the process, and is never destroyed: libraries read the
/// environment when they are unloaded, which is after that.
std::span<char> keep(const std::string& texts) {
  static auto& kept = *new std::list<std::string>;
  return kept.emplace_back(texts);
}

/// Pointers to joined texts, as main() gets them; they stay, too.
char** texts_in(std::span<char> joined_texts) {
  static auto& kept = *new std::list<std::vector<char*>>;
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

/// Gives the inherited descriptor its number.
void inherit(Received& received, int& outcome) {
  const int number = received.request.inherited;
  if (number < 0) return;
  const int given = received.descriptors[kInherited].release();
  if (outcome == number) outcome = ::fcntl(outcome, F_DUPFD_CLOEXEC, number + 1);
  received.descriptors.clear();  // one of them may have the number
  if (given == number ? ::fcntl(number, F_SETFD, 0) != 0 : ::dup2(given, number) < 0)
    give_up(outcome, "dup2");
  if (given != number) ::close(given);
}

/// The wanted process, which `between` has forked.
void become(Received& received, pid_t between) {
  int outcome = received.descriptors[kOutcome].release();
  const std::span<char> area = environment_area();
  while (::getppid() == between) ::usleep(kAdoptionPollUs);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != received.request.launcher) {
    errno = ECHILD;
    give_up(outcome, "become a child of stormo");
  }
  Place place = received.request.place;
  place.input = received.descriptors[kInput].get();
  place.output = received.descriptors[kOutput].get();
  place.error = received.descriptors[kError].get();
  if (const char* failed = take_place(place)) give_up(outcome, failed);
  if (::setrlimit(RLIMIT_NOFILE, &received.request.files) != 0) give_up(outcome, "setrlimit");
  inherit(received, outcome);
  set_environment(received.environment, area);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const Outcome started{.pid = ::getpid()};
  if (::write(outcome, &started, sizeof started) < 0) ::_exit(127);
  ::close(outcome);
}

/// True in the wanted process.
bool fork_one(Received& received, int control) {
  const int outcome = received.descriptors[kOutcome].get();
  const pid_t between = ::fork();
  if (between < 0) {
    const Outcome failed{.error = errno, .what = {"fork"}};
    [[maybe_unused]] const ssize_t n = ::write(outcome, &failed, sizeof failed);
    return false;
  }
  if (between > 0) {
    ::waitpid(between, nullptr, 0);
    return false;
  }
  ::close(control);  // an inherited descriptor may get its number
  const pid_t self = ::getpid();
  const pid_t wanted = ::fork();
  if (wanted < 0) give_up(outcome, "fork");
  if (wanted > 0) ::_exit(0);
  become(received, self);
  return true;
}

bool has_one_thread() {
  std::error_code error;
  const std::filesystem::directory_iterator threads("/proc/self/task", error);
  return !error && std::distance(begin(threads), end(threads)) == 1;
}

}  // namespace

Result<std::unique_ptr<ForkServer>> ForkServer::start(Child program) {
  fill_standard_descriptors();
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
  STORMO_RETURN_IF_ERROR(wait_for(server->control_.get(), POLLIN, Deadline::after(kPatience)));
  char loaded = 0;
  if (read_all(server->control_.get(), &loaded, sizeof loaded)) {
    ::fcntl(server->control_.get(), F_SETFL, O_NONBLOCK);
    return server;
  }
  return Status(Code::kPeerLost, fmt::format("'{}' ended while it was loaded", program.file));
}

void ForkServer::end() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  forget_child(std::exchange(pid_, 0));
}

Result<pid_t> ForkServer::spawn(const Child& child) {
  STORMO_ASSIGN_OR_RETURN(Pipe pipe, make_pipe());
  const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) return errno_error("open /dev/null");
  const auto or_else = [](int fd, int otherwise) { return fd >= 0 ? fd : otherwise; };
  std::vector<int> descriptors = {pipe.write.get(), or_else(child.input, null.get()),
                                  or_else(child.output, STDOUT_FILENO),
                                  or_else(child.error, STDERR_FILENO)};
  if (child.inherited) descriptors.push_back(*child.inherited);
  const std::string arguments = joined(child.argv), environment = joined(child.environment);
  Request request{
      .launcher = ::getpid(),
      .place = {.group = child.group, .bind = !child.cpus.empty(), .cpus = to_cpu_set(child.cpus)},
      .inherited = child.inherited.value_or(-1),
      .arguments_bytes = arguments.size(),
      .environment_bytes = environment.size()};
  if (::getrlimit(RLIMIT_NOFILE, &request.files) != 0) return errno_error("getrlimit");
  const Deadline by = Deadline::after(kPatience);
  Status status = send_request(control_.get(), request, descriptors, arguments + environment, by);
  pipe.write.reset();
  if (status.ok()) status = wait_for(pipe.read.get(), POLLIN, by);
  Outcome outcome;
  if (status.code() == Code::kIo || (status.ok() && !read_outcome(pipe.read.get(), outcome)))
    return Status(Code::kPeerLost, "a process ended while it was forked, or the one that forks");
  STORMO_RETURN_IF_ERROR(status);
  if (outcome.pid > 0) {
    note_child(outcome.pid);
    return outcome.pid;
  }
  const std::string what = outcome.what.data();
  errno = outcome.error;
  return errno_error(what == "fork" ? kNoProcess : what);
}

void serve_forks(int& argc, char**& argv) {
  const char* const number = std::getenv(kControlVariable);
  if (number == nullptr) return;
  const int control = std::atoi(number);
  // those for the launcher's group reach this process, too
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  const char loaded = 1;
  if (!has_one_thread() || ::send(control, &loaded, sizeof loaded, MSG_NOSIGNAL) != 1) ::_exit(1);
  for (Received received; receive_request(control, received); received = {}) {
    if (!fork_one(received, control)) continue;
    argv = texts_in(keep(received.arguments));
    argc = static_cast<int>(std::ranges::count(received.arguments, '\0'));
    return;
  }
  ::_exit(0);
}

}  // namespace stormo::launch
