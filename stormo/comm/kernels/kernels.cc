#include <algorithm>
#include <cstddef>
#include <cstring>

#include <stormo/comm/kernels/kernels_detail.h>

namespace stormo::comm {
namespace {

void clear(DType dtype, std::span<void* const> destinations, std::int64_t count) {
  for (void* to : destinations)
    std::memset(to, 0, static_cast<std::size_t>(count) * size_of(dtype));
}

}  // namespace

void reduce(DType dtype, Combine how, std::span<const Operand> sources,
            std::span<void* const> destinations, std::int64_t count) {
  if (count == 0) return;  // empty buffers may be null
  if (sources.empty()) return clear(dtype, destinations, count);
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kFloat16:
    case DType::kBFloat16: return reduce_float(dtype, how, sources, destinations, count);
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUInt8:
    case DType::kBool: return reduce_integer(dtype, how, sources, destinations, count);
  }
}

void reduce(DType dtype, const CombineFunction& function, std::span<const Operand> sources,
            std::span<void* const> destinations, std::int64_t count) {
  if (count == 0) return;
  if (sources.empty()) return clear(dtype, destinations, count);
  constexpr std::int64_t kBlockBytes = 8192;
  alignas(64) std::byte acc[kBlockBytes];
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  for (std::int64_t begin = 0; begin < count; begin += kBlockBytes / width) {
    const std::int64_t n = std::min(kBlockBytes / width, count - begin);
    const auto bytes = static_cast<std::size_t>(n * width);
    const auto at = [&](const Operand& o) {
      return static_cast<const std::byte*>(o.data) + begin * width;
    };
    std::memcpy(acc, at(sources.front()), bytes);
    for (const Operand& o : sources.subspan(1)) function(at(o), acc, n);
    for (void* to : destinations) {
      std::memcpy(static_cast<std::byte*>(to) + begin * width, acc, bytes);
    }
  }
}

}  // namespace stormo::comm
