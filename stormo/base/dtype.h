#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stormo {

/// Element types of data that ranks exchange. Values are wire format: append only.
enum class DType : std::uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kBFloat16 = 2,  ///< reduced with float32 accumulation, rounded to nearest even
  kInt32 = 3,
  kInt64 = 4,
  kUInt8 = 5,
  kFloat16 = 6,  ///< as kBFloat16
  kInt8 = 7,
  kInt16 = 8,
  kBool = 9,  ///< one byte, 0 or 1
};
inline constexpr std::array kDTypes = {
    DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16, DType::kInt8,
    DType::kInt16,   DType::kInt32,   DType::kInt64,    DType::kUInt8,   DType::kBool};

constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat64:
    case DType::kInt64: return 8;
    case DType::kBFloat16:
    case DType::kFloat16:
    case DType::kInt16: return 2;
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool: return 1;
  }
  return 0;
}

constexpr bool is_floating(DType t) {
  return t == DType::kFloat32 || t == DType::kFloat64 || t == DType::kBFloat16 ||
         t == DType::kFloat16;
}

/// "float32", "bfloat16", ...
std::string_view to_string(DType t);

/// The DType of a C++ element type; 16-bit floats have no C++ type here and are named explicitly.
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
struct DTypeOf<std::int8_t> {
  static constexpr DType value = DType::kInt8;
};
template <>
struct DTypeOf<std::int16_t> {
  static constexpr DType value = DType::kInt16;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::kUInt8;
};

}  // namespace stormo
