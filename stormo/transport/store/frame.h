#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <stormo/base/status.h>

namespace stormo::transport {

// A frame is the length of its body in 32 bits, and the body.

inline constexpr std::size_t kFrameLengthBytes = 4;

/// A frame with this body, in two parts.
std::string frame(std::string_view head, std::string_view rest = {});

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

}  // namespace stormo::transport
