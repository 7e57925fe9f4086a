#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

namespace stormo::transport {

/// What /proc/self/smaps says after `key` of the mapping around `address`; empty: nothing.
inline std::string smaps_value(const void* address, std::string_view key) {
  std::ifstream smaps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  bool there = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      there = begin <= wanted && wanted < end;
    } else if (there && line.starts_with(key)) {
      return line.substr(key.size());
    }
  }
  return "";
}

}  // namespace stormo::transport
