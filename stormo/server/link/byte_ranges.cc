#include <stormo/server/link/byte_ranges.h>

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace stormo::server {
namespace {

constexpr std::size_t kPartsPerCall = 64;

}  // namespace

void ByteRanges::add(const void* data, std::size_t bytes) {
  if (bytes > 0) ranges_.push_back({const_cast<void*>(data), bytes});
}

void ByteRanges::set_head(std::string body) {
  head_bytes_ = static_cast<std::uint32_t>(body.size());
  head_ = std::move(body);
  rewind();
}

void ByteRanges::rewind() {
  next_ = head_ ? 0 : kNoHead;
  offset_ = 0;
  moved_ = 0;
}

Result<bool> ByteRanges::transfer(int fd, Way way) {
  if (done()) return false;
  if (head_) {  // it moves with this object
    ranges_[0] = {&head_bytes_, sizeof head_bytes_};
    ranges_[1] = {head_->data(), head_->size()};
  }
  std::array<iovec, kPartsPerCall> parts;
  const std::size_t count = std::min(kPartsPerCall, ranges_.size() - next_);
  std::copy_n(ranges_.begin() + static_cast<std::ptrdiff_t>(next_), count, parts.begin());
  parts[0].iov_base = static_cast<std::byte*>(parts[0].iov_base) + offset_;
  parts[0].iov_len -= offset_;
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const ssize_t n =
      way == Way::kSend ? ::sendmsg(fd, &message, MSG_NOSIGNAL) : ::recvmsg(fd, &message, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) return io_error(std::strerror(n < 0 ? errno : ECONNRESET));
  moved_ += static_cast<std::size_t>(n);
  offset_ += static_cast<std::size_t>(n);
  while (!done() && offset_ >= ranges_[next_].iov_len) offset_ -= ranges_[next_++].iov_len;
  return true;
}

Status ByteRanges::transfer_all(int fd, Way way) {
  rewind();
  while (!done()) STORMO_RETURN_IF_ERROR(transfer(fd, way).status());
  return {};
}

}  // namespace stormo::server
