#include <stormo/transport/call/frame.h>

#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

namespace stormo::transport {
namespace {

constexpr std::size_t kStepBytes = 64 << 10;
constexpr std::size_t kRangesPerCall = 64;

/// The length that is announced by the first bytes of a frame.
Result<std::size_t> length_of(std::string_view frame, std::string_view protocol, std::size_t most) {
  std::uint32_t length = 0;
  std::memcpy(&length, frame.data(), sizeof length);
  if (length <= most) return std::size_t{length};
  return Status(Code::kCorrupt, fmt::format("{} protocol: frame of {} B, at most {} are allowed",
                                            protocol, length, most));
}

}  // namespace

void append_frame(std::string& out, std::string_view body) {
  const auto length = static_cast<std::uint32_t>(body.size());
  out.append(reinterpret_cast<const char*>(&length), sizeof length).append(body);
}

std::string frame(std::string_view body) { return begin_of_frame(body, 0); }

std::string begin_of_frame(std::string_view head, std::size_t following) {
  const auto length = static_cast<std::uint32_t>(head.size() + following);
  std::string out(kFrameLengthBytes, '\0');
  out.reserve(kFrameLengthBytes + head.size());
  std::memcpy(out.data(), &length, sizeof length);
  return out.append(head);
}

Result<std::optional<std::string_view>> FrameSplitter::next() {
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  std::size_t length = 0;
  const bool has_length = rest.size() >= kFrameLengthBytes;
  if (has_length) {
    STORMO_ASSIGN_OR_RETURN(length, length_of(rest, protocol_, most_));
  }
  if (!has_length || rest.size() < kFrameLengthBytes + length) {
    buffer_.erase(0, begin_);
    begin_ = 0;
    return std::optional<std::string_view>();
  }
  begin_ += kFrameLengthBytes + length;
  return std::optional(rest.substr(kFrameLengthBytes, length));
}

Result<std::optional<std::string_view>> FrameReceiver::receive(Channel& channel) {
  for (;;) {
    std::size_t needed = kFrameLengthBytes;
    if (filled_ >= kFrameLengthBytes) {
      STORMO_ASSIGN_OR_RETURN(const std::size_t length, length_of(buffer_, protocol_, most_));
      needed += length;
      if (filled_ == needed) break;
    }
    buffer_.resize(std::min(needed, filled_ + kStepBytes));
    const iovec rest{buffer_.data() + filled_, buffer_.size() - filled_};
    const ssize_t n = channel.receive({&rest, 1});
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return std::optional<std::string_view>();
    if (n <= 0) return io_error(describe_socket_error(n < 0 ? errno : ECONNRESET));
    filled_ += static_cast<std::size_t>(n);
  }
  filled_ = 0;
  return std::optional(std::string_view(buffer_).substr(kFrameLengthBytes));
}

void ByteRanges::set_head(std::string_view body) {
  head_ = frame(body);
  rewind();
}

void ByteRanges::rewind() {
  next_ = head_.empty() ? 1 : 0;
  offset_ = 0;
  moved_ = 0;
}

Result<bool> ByteRanges::transfer(Channel& channel, Way way) {
  if (done()) return false;
  ranges_[0] = {head_.data(), head_.size()};  // it moves with this object
  std::array<iovec, kRangesPerCall> parts;
  const std::size_t count = std::min(kRangesPerCall, ranges_.size() - next_);
  std::copy_n(ranges_.begin() + static_cast<std::ptrdiff_t>(next_), count, parts.begin());
  parts[0].iov_base = static_cast<std::byte*>(parts[0].iov_base) + offset_;
  parts[0].iov_len -= offset_;
  const auto all = std::span(parts).first(count);
  const ssize_t n = way == Way::kSend ? channel.send(all) : channel.receive(all);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) return io_error(describe_socket_error(n < 0 ? errno : ECONNRESET));
  moved_ += static_cast<std::size_t>(n);
  offset_ += static_cast<std::size_t>(n);
  while (!done() && offset_ >= ranges_[next_].iov_len) offset_ -= ranges_[next_++].iov_len;
  return true;
}

Status ByteRanges::transfer_all(Channel& channel, Way way) {
  rewind();
  while (!done()) STORMO_RETURN_IF_ERROR(transfer(channel, way).status());
  return {};
}

}  // namespace stormo::transport
