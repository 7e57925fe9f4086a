#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/transport/net/channel.h>

namespace stormo::transport {

// A frame is the length of its body in 32 bits, and the body. Long data follow a frame as they lie
// in memory.

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
  Result<std::optional<std::string_view>> receive(Channel& channel);

 private:
  std::string_view protocol_;
  std::size_t most_;
  std::string buffer_;
  std::size_t filled_ = 0;  // bytes of buffer_
};

/// Ranges of memory that are sent or received one after the other, in large system calls without
/// a copy. The memory is borrowed.
class ByteRanges {
 public:
  void add(const void* data, std::size_t bytes) {
    if (bytes > 0) ranges_.push_back({const_cast<void*>(data), bytes});
  }
  /// A frame with this body goes before all ranges, of which none counts as moved then.
  void set_head(std::string_view body);
  bool done() const { return next_ >= ranges_.size(); }
  /// Bytes that were moved since the beginning.
  std::size_t moved() const { return moved_; }

  /// As much as the socket takes or has now: false if that was nothing (it does not block). kIo
  /// when the connection has ended.
  Result<bool> send(Channel& channel) { return transfer(channel, Way::kSend); }
  Result<bool> receive(Channel& channel) { return transfer(channel, Way::kReceive); }
  /// All of it, from the first byte, on a socket that blocks.
  Status send_all(Channel& channel) { return transfer_all(channel, Way::kSend); }
  Status receive_all(Channel& channel) { return transfer_all(channel, Way::kReceive); }
  /// Back to the first byte.
  void rewind();

 private:
  enum class Way { kSend, kReceive };
  Result<bool> transfer(Channel& channel, Way way);
  Status transfer_all(Channel& channel, Way way);

  std::string head_;                  // the frame; empty: none
  std::vector<iovec> ranges_ = {{}};  // the first one: the frame
  std::size_t next_ = 1;              // range
  std::size_t offset_ = 0;            // bytes of it that are done
  std::size_t moved_ = 0;             // of all ranges
};

}  // namespace stormo::transport
