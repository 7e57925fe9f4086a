#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <stormo/base/dtype.h>

namespace stormo::comm {

/// The device of a buffer's memory. Engines for other devices enqueue operations on Buffer::stream.
struct Device {
  enum class Kind : std::uint8_t { kCpu, kCuda } kind = Kind::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// A non-owning, typed, contiguous span of elements.
struct Buffer {
  void* data = nullptr;
  std::int64_t count = 0;  ///< elements, not bytes
  DType dtype = DType::kFloat32;
  Device device{};
  void* stream = nullptr;  ///< device stream that orders uses of the buffer; null on the CPU

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(count) * size_of(dtype); }
};

template <class T, std::size_t N>
Buffer buffer_of(std::span<T, N> s) {
  return {s.data(), static_cast<std::int64_t>(s.size()), DTypeOf<T>::value};
}

}  // namespace stormo::comm
