#include <bench/payload.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace stormo::bench {
namespace {

constexpr std::uint64_t kPeriod = 4093;  // prime: no chunk of a schedule is a multiple of it
constexpr int kIterations = 7;           // patterns are kept, so only so many differ

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Exact for 0 to 2047.
std::uint16_t half_of(int value) {
  if (value == 0) return 0;
  const int exponent = std::bit_width(static_cast<unsigned>(value)) - 1;
  const int mantissa = (value << 10 >> exponent) & 0x3ff;
  return static_cast<std::uint16_t>((exponent + 15) << 10 | mantissa);
}

template <class T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

void encode(DType dtype, int value, std::byte* at) {
  switch (dtype) {
    case DType::kFloat32: return store(at, static_cast<float>(value));
    case DType::kFloat64: return store(at, static_cast<double>(value));
    case DType::kBFloat16:
      return store(at, static_cast<std::uint16_t>(
                           std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16));
    case DType::kFloat16: return store(at, half_of(value));
    case DType::kInt32: return store(at, static_cast<std::int32_t>(value));
    case DType::kInt64: return store(at, static_cast<std::int64_t>(value));
    case DType::kInt16: return store(at, static_cast<std::int16_t>(value));
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool: return store(at, static_cast<std::uint8_t>(value));
  }
}

}  // namespace

std::optional<DType> find_dtype(std::string_view name) {
  for (const DType dtype : kDTypes)
    if (to_string(dtype) == name && dtype != DType::kBool) return dtype;
  return std::nullopt;
}

Payload::Payload(DType dtype, int ranks, std::uint64_t elements, bool reduces)
    : dtype_(dtype),
      modulus_(reduces ? std::clamp(127 / ranks, 2, 16) : 100),
      period_(std::clamp<std::uint64_t>(elements, 1, kPeriod)) {}

int Payload::value(std::uint64_t element, int rank, int iteration) const {
  const auto seed = static_cast<std::uint64_t>(rank * kIterations + iteration + 1);
  return static_cast<int>(mixed(element + (seed << 32)) % static_cast<unsigned>(modulus_));
}

const Payload::Pattern& Payload::pattern(int first, int last, int iteration) {
  iteration %= kIterations;
  Pattern& p = patterns_[{first, last, iteration}];
  if (!p.empty()) return p;
  p.resize(period_ * size_of(dtype_));
  for (std::uint64_t i = 0; i < period_; ++i) {
    int sum = 0;
    for (int rank = first; rank <= last; ++rank) sum += value(i, rank, iteration);
    encode(dtype_, sum, p.data() + i * size_of(dtype_));
  }
  return p;
}

void Payload::rewrite(std::byte* in, std::uint64_t count, int rank, int iteration) {
  const Pattern& p = pattern(rank, rank, iteration);
  for (std::uint64_t left = count * size_of(dtype_); left > 0;) {
    const std::uint64_t n = std::min<std::uint64_t>(left, p.size());
    std::memcpy(in, p.data(), n);
    in += n;
    left -= n;
  }
}

void Payload::spoil(std::byte* out, std::uint64_t bytes) {
  if (bytes > 0) std::memset(out, 0xd5, bytes);
}

bool Payload::holds(const std::byte* out, const std::vector<Segment>& expected, int iteration) {
  for (const Segment& segment : expected) {
    const Pattern& p = pattern(segment.first, segment.last, iteration);
    std::uint64_t at = segment.offset % period_ * size_of(dtype_);
    for (std::uint64_t left = segment.count * size_of(dtype_); left > 0;) {
      const std::uint64_t n = std::min<std::uint64_t>(left, p.size() - at);
      if (std::memcmp(out, p.data() + at, n) != 0) return false;
      out += n;
      left -= n;
      at = 0;
    }
  }
  return true;
}

}  // namespace stormo::bench
