#include <stormo/launch/messages/job_control.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include <stormo/base/version.h>
#include <stormo/transport/call/frame.h>

namespace stormo::launch {
namespace {

using transport::Descriptor;

/// For the other side to write or read.
constexpr Duration kPatience = std::chrono::seconds(2);
constexpr std::size_t kLongest = std::size_t{1} << 20;
constexpr int kLongestPollMs = 60'000;

/// Any version reads the first field.
struct ControlMessage {
  std::string version;
  std::string_view body;
};
void fields(auto& visit, transport::Like<ControlMessage> auto& message) {
  visit("message", message.version, transport::rest(message.body));
}

template <class Body>
std::string to_bytes(const Body& body) {
  const std::string text = transport::encode(body);
  return transport::frame(transport::encode(ControlMessage{.version = kVersion, .body = text}));
}

template <class Body>
Result<Body> from_bytes(std::string_view bytes) {
  STORMO_ASSIGN_OR_RETURN(const auto message, transport::decode<ControlMessage>("job", bytes));
  if (message.version != kVersion) {
    return Status(Code::kRefused, fmt::format("it is of version {}, this is {}; use the `stormo` "
                                              "that has started the job",
                                              message.version, kVersion));
  }
  return transport::decode<Body>("job", message.body);
}

Status wait_for(int fd, short events, Deadline by) {
  pollfd waiting{fd, events, 0};
  while (!by.expired()) {
    const int ms = transport::poll_timeout(RealClock().now(), by.when(), kLongestPollMs);
    if (::poll(&waiting, 1, ms) > 0) return {};
  }
  return {Code::kDeadlineExceeded, "it does not answer; is it stopped?"};
}

Status send_all(int fd, std::string_view bytes, Deadline by) {
  while (!bytes.empty()) {
    STORMO_RETURN_IF_ERROR(wait_for(fd, POLLOUT, by));
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EINTR && errno != EAGAIN) return errno_error("send");
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

/// The body of the only frame that comes.
Result<std::string> receive_frame(int fd, Deadline by) {
  transport::FrameSplitter frames("job", kLongest);
  for (std::array<char, 4096> buffer;;) {
    STORMO_RETURN_IF_ERROR(wait_for(fd, POLLIN, by));
    const ssize_t n = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return Status(Code::kIo, "it has closed the connection");
    frames.append({buffer.data(), static_cast<std::size_t>(n)});
    STORMO_ASSIGN_OR_RETURN(const auto body, frames.next());
    if (body) return std::string(*body);
  }
}

}  // namespace

JobControl::JobControl(std::string path, Answer answer, Descriptor listener, Descriptor end)
    : path_(std::move(path)),
      answer_(std::move(answer)),
      listener_(std::move(listener)),
      end_(std::move(end)),
      thread_([this] { serve(); }) {}

Result<std::unique_ptr<JobControl>> JobControl::start(std::string path, Answer answer) {
  ::unlink(path.c_str());
  Descriptor end(::eventfd(0, EFD_CLOEXEC));
  if (!end.valid()) return errno_error("eventfd");
  STORMO_ASSIGN_OR_RETURN(Descriptor listener, transport::listen_unix(path));
  return std::unique_ptr<JobControl>(
      new JobControl(std::move(path), std::move(answer), std::move(listener), std::move(end)));
}

JobControl::~JobControl() {
  ::eventfd_write(end_.get(), 1);
  thread_.join();
  ::unlink(path_.c_str());
}

void JobControl::serve() {
  for (;;) {
    std::array<pollfd, 2> waiting{{{listener_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}}};
    if (::poll(waiting.data(), waiting.size(), -1) < 0) continue;
    if (waiting[1].revents != 0) return;
    transport::SocketAddress peer;
    const auto connection = transport::accept_from(listener_.get(), &peer);
    // whoever asks wrongly hears nothing
    if (connection.ok() && connection->valid()) (void)answer_one(connection->get());
  }
}

Status JobControl::answer_one(int fd) const {
  STORMO_RETURN_IF_ERROR(transport::check_same_user(fd));
  STORMO_ASSIGN_OR_RETURN(const std::string bytes, receive_frame(fd, Deadline::after(kPatience)));
  const auto request = from_bytes<SizeRequest>(bytes);
  const JobSize size =
      request.ok() ? answer_(*request) : JobSize{.refused = request.status().message()};
  return send_all(fd, to_bytes(size), Deadline::after(kPatience));
}

Result<JobSize> ask_job(const std::string& path, const SizeRequest& request, Deadline by) {
  STORMO_ASSIGN_OR_RETURN(const transport::SocketAddress address, transport::unix_address(path));
  const Status gone(Code::kNotFound, "the job has ended");
  const Result<Descriptor> connection = transport::start_connect(address);
  if (!connection.ok()) return gone;
  const int fd = connection->get();
  STORMO_RETURN_IF_ERROR(wait_for(fd, POLLOUT, by));
  if (!transport::connect_outcome(fd).ok()) return gone;
  if (!send_all(fd, to_bytes(request), by).ok()) return gone;
  const Result<std::string> bytes = receive_frame(fd, by);
  if (bytes.status().code() == Code::kIo) return gone;
  STORMO_RETURN_IF_ERROR(bytes.status());
  return from_bytes<JobSize>(*bytes);
}

}  // namespace stormo::launch
