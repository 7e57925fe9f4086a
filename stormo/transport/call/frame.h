#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <stormo/base/status.h>

namespace stormo::transport {

// A frame is the length of its body in 32 bits, and the body.

inline constexpr std::size_t kFrameLengthBytes = 4;

/// A frame with this body.
std::string frame(std::string_view body);
void append_frame(std::string& out, std::string_view body);
/// The begin of a frame: as many bytes of its body follow, which are sent from where they are.
std::string begin_of_frame(std::string_view head, std::size_t following);

/// Splits a byte stream into frames. It stores only received bytes; it does not allocate by an
/// announced length.
class FrameSplitter {
 public:
  /// `most`: bytes of the longest body. `protocol`: named in errors; a constant.
  FrameSplitter(std::string_view protocol, std::size_t most) : protocol_(protocol), most_(most) {}

  void append(std::string_view bytes) { buffer_.append(bytes); }
  /// The next complete frame's body, valid until the next call of any member; nothing when more
  /// bytes are needed; kCorrupt when the announced length exceeds `most`.
  Result<std::optional<std::string_view>> next();
  std::size_t buffered() const { return buffer_.size() - begin_; }

 private:
  std::string_view protocol_;
  std::size_t most_;
  std::string buffer_;
  std::size_t begin_ = 0;
};

/// Receives frames one by one, and no byte that comes after one: those may belong elsewhere. Memory
/// grows with what has arrived.
class FrameReceiver {
 public:
  /// As FrameSplitter.
  FrameReceiver(std::string_view protocol, std::size_t most) : protocol_(protocol), most_(most) {}

  /// The next frame's body, valid until the next call; nothing when the socket has no more now, if
  /// it does not block. kIo when the connection has ended, kCorrupt for a body that is too long.
  Result<std::optional<std::string_view>> receive(int fd);

 private:
  std::string_view protocol_;
  std::size_t most_;
  std::string buffer_;
  std::size_t filled_ = 0;  // bytes of buffer_
};

}  // namespace stormo::transport
