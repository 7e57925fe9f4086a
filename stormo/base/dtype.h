#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stormo {

/// Element types that cross ranks. Values are wire format: append only.
enum class DType : std::uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kBFloat16 = 2,  ///< reduced with float32 accumulation, rounded to nearest even
  kInt32 = 3,
  kInt64 = 4,
  kUInt8 = 5,
};

constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat64:
    case DType::kInt64: return 8;
    case DType::kBFloat16: return 2;
    case DType::kUInt8: return 1;
  }
  return 0;
}

/// "float32", "bfloat16", ...
std::string_view to_string(DType t);

/// The DType of a C++ element type; bfloat16 has no C++ type here and is named explicitly.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::kInt64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::kUInt8;
};

}  // namespace stormo
