#pragma once

#include <string>

#include <stormo/base/rng.h>

namespace stormo::data {

/// `bytes` with one to four random changes: a bit flipped, a byte replaced, a piece removed or
/// doubled, the end cut off. A function of the seed.
inline std::string mutate(std::string bytes, std::uint64_t seed) {
  Rng rng(seed, "mutation");
  for (std::uint64_t left = 1 + rng.below(4); left > 0 && !bytes.empty(); --left) {
    const auto at = static_cast<std::size_t>(rng.below(bytes.size()));
    const auto length = static_cast<std::size_t>(rng.below(16));
    switch (rng.below(5)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << rng.below(8))); break;
      case 1: bytes[at] = static_cast<char>(rng.below(256)); break;
      case 2: bytes.erase(at, length); break;
      case 3: bytes.insert(at, bytes.substr(at, length)); break;
      default: bytes.resize(at); break;
    }
  }
  return bytes;
}

}  // namespace stormo::data
