#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include <stormo/base/rng.h>
#include <stormo/codec/kernels.h>

namespace stormo::codec::random_k {
namespace {

/// Calls visit(number of the stretch, place of its number that travels).
template <class Visit>
void for_each_place(std::size_t numbers, const CodeKey& key, const Visit& visit) {
  const auto count = static_cast<std::int64_t>(numbers);
  const auto kept = static_cast<std::size_t>(kept_of(count, key.density));
  std::array<std::uint32_t, 4> drawn{};
  for (std::size_t i = 0; i < kept; ++i) {
    if (i % 4 == 0) {
      drawn = philox4x32(
          {static_cast<std::uint32_t>(i)},
          {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)});
    }
    const std::size_t first = numbers * i / kept, length = numbers * (i + 1) / kept - first;
    visit(i, first + static_cast<std::size_t>(std::uint64_t{drawn[i % 4]} * length >> 32));
  }
}

bool all_finite(std::span<const float> values) {
  std::uint32_t wrong = 0;
  for (const float v : values) {
    wrong |=
        static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(v) & 0x7f800000) == 0x7f800000);
  }
  return wrong == 0;
}

}  // namespace

std::int64_t bytes(std::int64_t numbers, double density) { return 4 * kept_of(numbers, density); }

void encode(std::span<float> values, std::byte* code, const CodeKey& key) {
  const bool finite = all_finite(values);
  if (!finite) std::ranges::fill(values, std::numeric_limits<float>::quiet_NaN());
  for_each_place(values.size(), key, [&](std::size_t i, std::size_t place) {
    std::memcpy(code + sizeof(float) * i, &values[place], sizeof(float));
    values[place] = 0;
  });
  if (!finite) std::ranges::fill(values, 0.0f);
}

void decode_add(const std::byte* code, std::span<float> values, const CodeKey& key) {
  for_each_place(values.size(), key, [&](std::size_t i, std::size_t place) {
    float value = 0;
    std::memcpy(&value, code + sizeof(float) * i, sizeof(float));
    values[place] += value;
  });
}

}  // namespace stormo::codec::random_k
