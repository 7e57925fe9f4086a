// Data frames: the header's parser, and a link that is sent any bytes in any pieces.
#include <stormo/base/check.h>
#include <stormo/transport/tcp/frame.h>
#include <stormo/transport/tcp/link.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "tests/fuzz/fuzz.h"

namespace stormo::fuzz {
namespace {

using namespace transport;

constexpr Epoch kEpoch = 5;
constexpr Tag kTag = 0x77;
constexpr std::array<std::size_t, 4> kLengths = {0, 1, 100, 5000};  // of the awaited messages

std::string frame(std::uint64_t sequence, std::size_t length, bool checksum) {
  const std::vector<std::byte> payload(length, std::byte{42});
  FrameHeader h{kEpoch, sequence, kTag, length, checksum, checksum ? checksum_of(payload) : 0};
  const FrameBytes header = encode(h);
  std::string out(reinterpret_cast<const char*>(header.data()), header.size());
  out.append(reinterpret_cast<const char*>(payload.data()), payload.size());
  return out;
}

void check_header(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  const auto decoded = decode_frame_header(bytes.first(std::min(bytes.size(), kFrameHeaderBytes)));
  if (!decoded.ok()) return;
  STORMO_CHECK(decoded->length <= kMaxMessageBytes, "an unbounded length");
  const FrameBytes again = encode(*decoded);
  STORMO_CHECK(std::ranges::equal(again, bytes.first(kFrameHeaderBytes)), "another header");
}

/// The first byte says in which pieces the rest comes, and whether there are checksums.
void check_link(std::string_view text) {
  if (text.empty()) return;
  const auto first = static_cast<unsigned char>(text[0]);
  const bool checksum = (first & 1) != 0;
  const std::size_t piece = std::size_t{1} << (first >> 4);
  text.remove_prefix(1);
  std::array<int, 2> fds{};
  STORMO_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()) == 0, "socketpair");
  const Descriptor raw(fds[0]);
  Connection link(1, Channel(Descriptor(fds[1])), kEpoch, checksum);
  std::array<std::vector<std::byte>, kLengths.size()> got;
  for (std::size_t i = 0; i < got.size(); ++i) {
    got[i].assign(kLengths[i] + 1, std::byte{0xEE});
    link.add(Incoming{1, kTag, std::span(got[i]).first(kLengths[i])});
  }
  while (!text.empty()) {
    const ssize_t n = ::send(raw.get(), text.data(), std::min(piece, text.size()), MSG_DONTWAIT);
    if (n <= 0) break;
    text.remove_prefix(static_cast<std::size_t>(n));
    const auto moved = link.receive_some();
    if (!moved.ok()) {
      const Code code = moved.status().code();
      STORMO_CHECK(code == Code::kCorrupt || code == Code::kMismatch, "another failure");
      break;
    }
  }
  for (const auto& b : got) STORMO_CHECK(b.back() == std::byte{0xEE}, "written past the end");
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> all{frame(0, 0, false), frame(7, 0, true)};
  for (const bool checksum : {false, true}) {
    std::string stream;
    for (std::size_t i = 0; i < kLengths.size(); ++i) stream += frame(i, kLengths[i], checksum);
    for (const int pieces : {0x40, 0x70, 0xE0}) {
      all.push_back(static_cast<char>(pieces + (checksum ? 1 : 0)) + stream);
    }
  }
  return all;
}

}  // namespace stormo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  stormo::fuzz::check_header(stormo::fuzz::as_text(data, size));
  stormo::fuzz::check_link(stormo::fuzz::as_text(data, size));
  return 0;
}
