#include <stormo/server/link/byte_ranges.h>

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace stormo::server {
namespace {

constexpr std::size_t kPartsPerCall = 64;

msghdr message_of(iovec* parts, std::size_t count) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  return message;
}

ssize_t send_parts(int fd, iovec* parts, std::size_t count) {
  const msghdr message = message_of(parts, count);
  return ::sendmsg(fd, &message, MSG_NOSIGNAL);
}

/// As read: 0 at the end of the connection, which is a failure here.
ssize_t receive_parts(int fd, iovec* parts, std::size_t count) {
  msghdr message = message_of(parts, count);
  const ssize_t n = ::recvmsg(fd, &message, 0);
  if (n != 0) return n;
  errno = ECONNRESET;
  return -1;
}

}  // namespace

void ByteRanges::add(const void* data, std::size_t bytes) {
  if (bytes > 0) ranges_.push_back({const_cast<void*>(data), bytes});
}

void ByteRanges::put_first(const void* data, std::size_t bytes) {
  ranges_.insert(ranges_.begin(), {const_cast<void*>(data), bytes});
}

Result<bool> ByteRanges::send(int fd) { return transfer(fd, send_parts); }
Result<bool> ByteRanges::receive(int fd) { return transfer(fd, receive_parts); }
Status ByteRanges::send_all(int fd) { return transfer_all(fd, send_parts); }
Status ByteRanges::receive_all(int fd) { return transfer_all(fd, receive_parts); }

void ByteRanges::rewind() {
  next_ = 0;
  offset_ = 0;
  moved_ = 0;
}

Result<bool> ByteRanges::transfer(int fd, Call call) {
  if (done()) return false;
  std::array<iovec, kPartsPerCall> parts;
  const std::size_t count = std::min(kPartsPerCall, ranges_.size() - next_);
  std::copy_n(ranges_.begin() + static_cast<std::ptrdiff_t>(next_), count, parts.begin());
  parts[0].iov_base = static_cast<std::byte*>(parts[0].iov_base) + offset_;
  parts[0].iov_len -= offset_;
  const ssize_t n = call(fd, parts.data(), count);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n < 0) return io_error(std::strerror(errno));
  advance(static_cast<std::size_t>(n));
  return true;
}

Status ByteRanges::transfer_all(int fd, Call call) {
  while (!done()) STORMO_RETURN_IF_ERROR(transfer(fd, call).status());
  return {};
}

void ByteRanges::advance(std::size_t bytes) {
  moved_ += bytes;
  while (bytes > 0) {
    const std::size_t of_range = std::min(bytes, ranges_[next_].iov_len - offset_);
    bytes -= of_range;
    offset_ += of_range;
    if (offset_ < ranges_[next_].iov_len) continue;
    ++next_;
    offset_ = 0;
  }
}

}  // namespace stormo::server
