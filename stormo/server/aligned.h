#pragma once

#include <cstddef>

namespace stormo::server {

inline constexpr std::size_t kLine = 64, kPage = 4096;

/// `bytes`, rounded up to a multiple of `to`.
inline std::size_t aligned(std::size_t bytes, std::size_t to = kLine) {
  return (bytes + to - 1) / to * to;
}

}  // namespace stormo::server
