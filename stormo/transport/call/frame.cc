#include <stormo/transport/call/frame.h>

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace stormo::transport {
namespace {

constexpr std::size_t kStepBytes = 64 << 10;

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

Result<std::optional<std::string_view>> FrameReceiver::receive(int fd) {
  for (;;) {
    std::size_t needed = kFrameLengthBytes;
    if (filled_ >= kFrameLengthBytes) {
      STORMO_ASSIGN_OR_RETURN(const std::size_t length, length_of(buffer_, protocol_, most_));
      needed += length;
      if (filled_ == needed) break;
    }
    buffer_.resize(std::min(needed, filled_ + kStepBytes));
    const ssize_t n = ::recv(fd, buffer_.data() + filled_, buffer_.size() - filled_, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return std::optional<std::string_view>();
    if (n <= 0) return io_error(std::strerror(n < 0 ? errno : ECONNRESET));
    filled_ += static_cast<std::size_t>(n);
  }
  filled_ = 0;
  return std::optional(std::string_view(buffer_).substr(kFrameLengthBytes));
}

}  // namespace stormo::transport
