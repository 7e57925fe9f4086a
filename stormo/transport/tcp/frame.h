#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>

namespace stormo::transport {

/// The header of every payload on a data connection.
struct FrameHeader {
  Epoch epoch = 0;
  std::uint64_t sequence = 0;  ///< of the messages in this direction of this connection, from 0
  Tag tag = 0;
  std::uint64_t length = 0;
  bool has_checksum = false;
  std::uint64_t checksum = 0;  ///< XXH3 of the payload
  bool operator==(const FrameHeader&) const = default;
};

inline constexpr std::size_t kFrameHeaderBytes = 48;
/// The longest message; a larger length means a damaged header.
inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 40;

using FrameBytes = std::array<std::byte, kFrameHeaderBytes>;
FrameBytes encode(const FrameHeader& header);
/// kCorrupt when magic, flags or length bound are wrong. `bytes` has kFrameHeaderBytes.
Result<FrameHeader> decode_frame_header(std::span<const std::byte> bytes);
std::uint64_t checksum_of(std::span<const std::byte> payload);

/// Compares with what the receiver expects of the next message, but for the checksum. kCorrupt for
/// a wrong epoch or sequence, kMismatch for tag, length or use of checksums; the message has both
/// values.
Status check_frame(const FrameHeader& header, const FrameHeader& expected);

}  // namespace stormo::transport
