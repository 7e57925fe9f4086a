#pragma once

#include <cstddef>
#include <cstdint>
#include <ranges>
#include <type_traits>

#include <stormo/base/dtype.h>

namespace stormo::comm {

/// The device of a buffer's memory. Engines for other devices enqueue operations on Buffer::stream.
struct Device {
  enum class Kind : std::uint8_t { kCpu, kCuda, kOther } kind = Kind::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

template <class T>
concept HasDType = requires { DTypeOf<T>::value; };

/// A non-owning, typed, contiguous sequence of elements.
struct Buffer {
  Buffer() = default;
  Buffer(void* data_, std::int64_t count_, DType dtype_, Device device_ = {},
         void* stream_ = nullptr)
      : data(data_), count(count_), dtype(dtype_), device(device_), stream(stream_) {}
  /// A std::vector, std::array or std::span is a Buffer of its elements:
  /// world.all_reduce(values, ReduceOp::kSum).
  template <std::ranges::contiguous_range R>
    requires std::ranges::sized_range<R> && std::ranges::borrowed_range<R> &&
             HasDType<std::remove_reference_t<std::ranges::range_reference_t<R>>>
  Buffer(R&& range)  // NOLINT(google-explicit-constructor)
      : Buffer(std::ranges::data(range), static_cast<std::int64_t>(std::ranges::size(range)),
               DTypeOf<std::ranges::range_value_t<R>>::value) {}

  void* data = nullptr;
  std::int64_t count = 0;  ///< elements, not bytes
  DType dtype = DType::kFloat32;
  Device device{};
  void* stream = nullptr;  ///< device stream that orders the buffer's use, null on the CPU

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(count) * size_of(dtype); }
};

}  // namespace stormo::comm
