#include <algorithm>
#include <cstddef>
#include <cstring>

#include <stormo/comm/kernels/kernels_detail.h>

namespace stormo::comm {

Kernel kernel_of(DType dtype) {
  return is_floating(dtype) ? kernel_of_float(dtype) : kernel_of_integer(dtype);
}

void reduce(DType dtype, const CombineFunction& function, std::span<const Operand> sources,
            std::span<void* const> destinations, std::int64_t count) {
  if (sources.empty()) return clear(destinations, static_cast<std::size_t>(count) * size_of(dtype));
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
