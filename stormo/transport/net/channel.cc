#include <fcntl.h>
#include <stormo/transport/net/channel.h>
#include <stormo/transport/net/tls_stream.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace stormo::transport {
namespace {

msghdr message_of(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace

static_assert(Channel::kReadAhead == TlsStream::kReadAhead);

Channel::Channel() = default;
Channel::Channel(Descriptor socket) : socket_(std::move(socket)) {}
Channel::Channel(Descriptor socket, std::unique_ptr<TlsStream> tls)
    : socket_(std::move(socket)), tls_(std::move(tls)) {}
Channel::~Channel() = default;  // TLS ends before its socket
Channel::Channel(Channel&& other) noexcept = default;

Channel& Channel::operator=(Channel&& other) noexcept {
  reset();
  socket_ = std::move(other.socket_);
  tls_ = std::move(other.tls_);
  blocks_ = other.blocks_;
  return *this;
}

void Channel::reset() {
  tls_.reset();
  socket_.reset();
}

ssize_t Channel::send(std::span<const iovec> parts) {
  if (tls_) return tls_->send(parts);
  const msghdr message = message_of(parts);
  return ::sendmsg(fd(), &message, MSG_NOSIGNAL | (blocks_ ? 0 : MSG_DONTWAIT));
}

ssize_t Channel::receive(std::span<const iovec> parts) {
  if (tls_) return tls_->receive(parts);
  msghdr message = message_of(parts);
  return ::recvmsg(fd(), &message, blocks_ ? 0 : MSG_DONTWAIT);
}

void Channel::set_blocking() {
  (void)::fcntl(fd(), F_SETFL, ::fcntl(fd(), F_GETFL) & ~O_NONBLOCK);
  blocks_ = true;
  if (tls_) tls_->set_blocking();
}

std::string describe_socket_error(int error) {
  if (error == EBADMSG) {
    return "bytes came that the other end has not encrypted: they were changed on the way, or it "
           "has ended the connection with an alert";
  }
  return std::strerror(error);
}

}  // namespace stormo::transport
