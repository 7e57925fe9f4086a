#include <fmt/format.h>
#include <stormo/transport/tcp/frame.h>
#include <xxhash.h>

#include <bit>
#include <cstring>
#include <type_traits>

namespace stormo::transport {
namespace {

constexpr std::uint32_t kMagic = 0x4D525453;  // "STRM"
constexpr std::uint32_t kChecksumFlag = 1;

Status corrupt(std::string message) { return {Code::kCorrupt, std::move(message)}; }
Status mismatch(std::string message) { return {Code::kMismatch, std::move(message)}; }

/// The header as it is sent, little-endian.
struct Wire {
  std::uint32_t magic = kMagic;
  Epoch epoch = 0;
  std::uint64_t sequence = 0;
  Tag tag = 0;
  std::uint64_t length = 0;
  std::uint64_t checksum = 0;
  std::uint32_t flags = 0;
  std::uint32_t zero = 0;
};
static_assert(sizeof(Wire) == kFrameHeaderBytes && std::has_unique_object_representations_v<Wire>);
static_assert(std::endian::native == std::endian::little);

}  // namespace

FrameBytes encode(const FrameHeader& h) {
  return std::bit_cast<FrameBytes>(Wire{.epoch = h.epoch,
                                        .sequence = h.sequence,
                                        .tag = h.tag,
                                        .length = h.length,
                                        .checksum = h.checksum,
                                        .flags = h.has_checksum ? kChecksumFlag : 0});
}

Result<FrameHeader> decode_frame_header(std::span<const std::byte> bytes) {
  if (bytes.size() != kFrameHeaderBytes) return corrupt("frame header cut short");
  Wire w;
  std::memcpy(&w, bytes.data(), sizeof w);
  if (w.magic != kMagic) return corrupt(fmt::format("frame starts with {:#x}", w.magic));
  if ((w.flags & ~kChecksumFlag) != 0 || w.zero != 0) {
    return corrupt("unknown flags in a frame header");
  }
  if (w.length > kMaxMessageBytes) return corrupt(fmt::format("frame of {} bytes", w.length));
  const bool has_checksum = w.flags == kChecksumFlag;
  if (!has_checksum && w.checksum != 0) return corrupt("checksum in a frame that has none");
  return FrameHeader{w.epoch, w.sequence, w.tag, w.length, has_checksum, w.checksum};
}

std::uint64_t checksum_of(std::span<const std::byte> payload) {
  return XXH3_64bits(payload.data(), payload.size());
}

Status check_frame(const FrameHeader& header, const FrameHeader& expected) {
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
