#pragma once

#include <string>
#include <string_view>

namespace stormo::data {

/// A .npy file as its specification (NumPy enhancement proposal 1) describes it.
inline std::string npy_bytes(std::string_view dictionary, std::string_view elements,
                             int version = 1) {
  std::string header(dictionary);
  const std::size_t front = version == 1 ? 10 : 12;
  header.append(63 - (front + header.size()) % 64, ' ');
  header.push_back('\n');
  std::string out("\x93NUMPY");
  out.push_back(static_cast<char>(version));
  out.push_back('\0');
  for (std::size_t i = 0; i < front - 8; ++i) {
    out.push_back(static_cast<char>(header.size() >> 8 * i & 0xff));
  }
  return out + header + std::string(elements);
}

}  // namespace stormo::data
