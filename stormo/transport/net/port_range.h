#pragma once

#include <cstdint>

namespace stormo::transport {

/// First port and last port tried, inclusive; 0-0 lets the system choose.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
  bool operator==(const PortRange&) const = default;
};

}  // namespace stormo::transport
