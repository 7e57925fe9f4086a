#include <stormo/tensor/dtype.h>

#include <fmt/format.h>

#include <string>
#include <utility>

namespace stormo::tensor {
namespace {

constexpr std::pair<DType, c10::ScalarType> kPairs[] = {
    {DType::kFloat32, c10::ScalarType::Float},     {DType::kFloat64, c10::ScalarType::Double},
    {DType::kBFloat16, c10::ScalarType::BFloat16}, {DType::kInt32, c10::ScalarType::Int},
    {DType::kInt64, c10::ScalarType::Long},        {DType::kUInt8, c10::ScalarType::Byte},
    {DType::kFloat16, c10::ScalarType::Half},      {DType::kInt8, c10::ScalarType::Char},
    {DType::kInt16, c10::ScalarType::Short},       {DType::kBool, c10::ScalarType::Bool},
};

}  // namespace

Result<DType> dtype_of(c10::ScalarType type) {
  std::string supported;
  for (const auto& [ours, theirs] : kPairs) {
    if (theirs == type) return ours;
    supported += fmt::format("{}{}", supported.empty() ? "" : ", ", to_string(ours));
  }
  return invalid_argument(
      fmt::format("tensors of type {} cannot be exchanged between ranks; convert to one of {}",
                  c10::toString(type), supported));
}

c10::ScalarType scalar_type_of(DType type) {
  for (const auto& [ours, theirs] : kPairs) {
    if (ours == type) return theirs;
  }
  return c10::ScalarType::Undefined;
}

}  // namespace stormo::tensor
