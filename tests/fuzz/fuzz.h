#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// A fuzz target is a source that defines these two. It is linked with libFuzzer (preset fuzz) and
/// with replay.cc, which needs no special compiler.

/// One input from outside. Aborts (STORMO_CHECK) when a promise about it is broken.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace stormo::fuzz {

/// Good inputs to start from.
std::vector<std::string> seeds();

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace stormo::fuzz
