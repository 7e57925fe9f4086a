#include <stormo/transport/call/frame_connection.h>

#include <poll.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>

namespace stormo::transport {
namespace {

/// ECONNRESET and EPIPE depend on what the other end had not read when it closed the connection.
Status ended(int error) {
  const bool by_peer = error == 0 || error == ECONNRESET || error == EPIPE;
  return io_error(by_peer ? "it closed the connection" : describe_socket_error(error));
}

}  // namespace

short FrameConnection::poll_events() const {
  return static_cast<short>(POLLIN | (sent_ < out_.size() ? POLLOUT : 0));
}

Result<bool> FrameConnection::receive() {
  std::array<char, 64 << 10> buffer;
  static_assert(sizeof buffer >= Channel::kReadAhead);
  const iovec all{buffer.data(), buffer.size()};
  const ssize_t n = socket_.receive({&all, 1});
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) return ended(n == 0 ? 0 : errno);
  in_.append({buffer.data(), static_cast<std::size_t>(n)});
  return true;
}

void FrameConnection::send(std::string_view body) {
  if (out_.size() - sent_ > max_unread_) {
    is_flooded_ = true;
  } else {
    append_frame(out_, body);
  }
}

Status FrameConnection::flush() {
  if (is_flooded_) return Status(Code::kExhausted, "it does not read what it is sent");
  while (sent_ < out_.size()) {
    const iovec rest{out_.data() + sent_, out_.size() - sent_};
    const ssize_t n = socket_.send({&rest, 1});
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return {};
    if (n < 0) return ended(errno);
    sent_ += static_cast<std::size_t>(n);
  }
  out_.clear();
  sent_ = 0;
  return {};
}

}  // namespace stormo::transport
