#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace stormo::transport {

/// HMAC-SHA256 of a text (RFC 2104). The key has at most 64 bytes.
std::array<std::byte, 32> hmac_sha256(std::span<const std::uint8_t> key,
                                      std::span<const std::byte> text);

}  // namespace stormo::transport
