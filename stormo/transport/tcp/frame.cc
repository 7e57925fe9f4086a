#include <fmt/format.h>
#include <stormo/transport/tcp/frame.h>
#include <xxhash.h>

#include <cstring>

namespace stormo::transport {
namespace {

constexpr std::uint32_t kMagic = 0x4D525453;  // "STRM"
constexpr std::uint32_t kChecksumFlag = 1;

Status corrupt(std::string message) { return {Code::kCorrupt, std::move(message)}; }
Status mismatch(std::string message) { return {Code::kMismatch, std::move(message)}; }

}  // namespace

// Layout: magic 4, epoch 4, sequence 8, tag 8, length 8, checksum 8, flags 4, zero 4;
// little-endian.
FrameBytes encode(const FrameHeader& header) {
  FrameBytes out{};
  const std::uint32_t flags = header.has_checksum ? kChecksumFlag : 0;
  std::memcpy(out.data(), &kMagic, 4);
  std::memcpy(out.data() + 4, &header.epoch, 4);
  std::memcpy(out.data() + 8, &header.sequence, 8);
  std::memcpy(out.data() + 16, &header.tag, 8);
  std::memcpy(out.data() + 24, &header.length, 8);
  std::memcpy(out.data() + 32, &header.checksum, 8);
  std::memcpy(out.data() + 40, &flags, 4);
  return out;
}

Result<FrameHeader> decode_frame_header(std::span<const std::byte> bytes) {
  if (bytes.size() != kFrameHeaderBytes) return corrupt("frame header cut short");
  FrameHeader h;
  std::uint32_t magic = 0;
  std::uint32_t flags = 0;
  std::uint32_t zero = 0;
  std::memcpy(&magic, bytes.data(), 4);
  std::memcpy(&h.epoch, bytes.data() + 4, 4);
  std::memcpy(&h.sequence, bytes.data() + 8, 8);
  std::memcpy(&h.tag, bytes.data() + 16, 8);
  std::memcpy(&h.length, bytes.data() + 24, 8);
  std::memcpy(&h.checksum, bytes.data() + 32, 8);
  std::memcpy(&flags, bytes.data() + 40, 4);
  std::memcpy(&zero, bytes.data() + 44, 4);
  if (magic != kMagic) return corrupt(fmt::format("frame starts with {:#x}", magic));
  if ((flags & ~kChecksumFlag) != 0 || zero != 0) return corrupt("unknown flags in a frame header");
  if (h.length > kMaxMessageBytes) return corrupt(fmt::format("frame of {} bytes", h.length));
  h.has_checksum = (flags & kChecksumFlag) != 0;
  if (!h.has_checksum && h.checksum != 0) return corrupt("checksum in a frame that has none");
  return h;
}

std::uint64_t checksum_of(std::span<const std::byte> payload) {
  return XXH3_64bits(payload.data(), payload.size());
}

Status check_frame(const FrameHeader& header, const FrameExpectation& expected) {
  if (header.epoch != expected.epoch) {
    return corrupt(fmt::format("epoch {}, expected {}", header.epoch, expected.epoch));
  }
  if (header.sequence != expected.sequence) {
    return corrupt(fmt::format("message #{}, expected #{}", header.sequence, expected.sequence));
  }
  if (header.tag != expected.tag) {
    return mismatch(
        fmt::format("message has tag {:#x}, expected {:#x}; the ranks call different "
                    "operations",
                    header.tag, expected.tag));
  }
  if (header.length != expected.length) {
    return mismatch(
        fmt::format("message has {} bytes, expected {}; the ranks call the operation "
                    "with different sizes",
                    header.length, expected.length));
  }
  if (header.has_checksum != expected.has_checksum) {
    return mismatch("one side uses checksums and the other does not; set the option on all ranks");
  }
  return {};
}

}  // namespace stormo::transport
