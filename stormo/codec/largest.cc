#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include <stormo/base/check.h>
#include <stormo/codec/kernels.h>

namespace stormo::codec {

std::int64_t kept_of(std::int64_t numbers, double density) {
  const auto share =
      static_cast<std::int64_t>(std::nearbyint(density * static_cast<double>(numbers)));
  return std::clamp<std::int64_t>(share, std::min<std::int64_t>(numbers, 1), numbers);
}

namespace {

constexpr std::uint32_t kInfinity = 0x7f800000;

/// Ordered as magnitudes are; NaN comes last.
std::uint32_t magnitude(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffff; }

struct Smallest {
  std::uint32_t magnitude = 0;
  std::size_t equal = 0;  ///< so many of this magnitude are among them
};

/// Of the `kept` largest values. Counts the magnitudes by their first 11 bits, then by the next 10
/// those that begin as the one that is sought, then by the last 10.
Smallest smallest_of_largest(std::span<const float> values, std::size_t kept) {
  Smallest out{.equal = kept};
  std::uint32_t known = 0;  // bits
  for (const auto& [shift, bits] : {std::pair{20u, 11u}, {10u, 10u}, {0u, 10u}}) {
    std::array<std::uint32_t, 2048> counts{};
    const std::uint32_t mask = (1u << bits) - 1;
    for (const float v : values) {
      const std::uint32_t m = magnitude(v);
      if ((m & known) == out.magnitude) ++counts[(m >> shift) & mask];
    }
    std::uint32_t bin = mask;
    while (counts[bin] < out.equal) out.equal -= counts[bin--];
    out.magnitude |= bin << shift;
    known |= mask << shift;
  }
  return out;
}

std::uint32_t word_at(const std::byte* code, std::size_t i) {
  std::uint32_t word = 0;
  std::memcpy(&word, code + 4 * i, 4);
  return word;
}

void put_word(std::byte* code, std::size_t i, std::uint32_t word) {
  std::memcpy(code + 4 * i, &word, 4);
}

void add(float& to, const std::byte* code, std::size_t i) {
  to += std::bit_cast<float>(word_at(code, i));
}

/// `count` numbers, behind which their places stand.
void add_at_indices(const std::byte* code, std::size_t count, std::span<float> values) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t place = word_at(code, count + i);
    STORMO_CHECK(place < values.size(), "a code of another message");
    add(values[place], code, i);
  }
}

}  // namespace
}  // namespace stormo::codec

namespace stormo::codec::top_k {
namespace {

struct Form {
  std::size_t kept;
  bool has_bits;  ///< one for each number
  std::size_t words;

  Form(std::size_t numbers, double density)
      : kept(static_cast<std::size_t>(kept_of(static_cast<std::int64_t>(numbers), density))),
        has_bits((numbers + 31) / 32 < kept),
        words(kept + std::min(kept, (numbers + 31) / 32)) {}
};

}  // namespace

std::int64_t bytes(std::int64_t numbers, double density) {
  return static_cast<std::int64_t>(4 * Form(static_cast<std::size_t>(numbers), density).words);
}

void encode(std::span<float> values, std::byte* code, const CodeKey& key) {
  const Form form(values.size(), key.density);
  if (form.kept == 0) return;
  std::byte* const places = code + 4 * form.kept;
  if (form.has_bits) std::memset(places, 0, 4 * (form.words - form.kept));
  auto [least, equal] = smallest_of_largest(values, form.kept);
  std::size_t sent = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t m = magnitude(values[i]);
    if (m < least || (m == least && equal == 0)) continue;
    if (m == least) --equal;
    put_word(code, sent, std::bit_cast<std::uint32_t>(values[i]));
    if (form.has_bits) {
      put_word(places, i / 32, word_at(places, i / 32) | 1u << i % 32);
    } else {
      put_word(places, sent, static_cast<std::uint32_t>(i));
    }
    values[i] = 0;
    ++sent;
  }
  if (least < kInfinity) return;
  for (float& v : values) {  // some that are not finite are left
    if (magnitude(v) >= kInfinity) v = 0;
  }
}

void decode_add(const std::byte* code, std::span<float> values, const CodeKey& key) {
  const Form form(values.size(), key.density);
  const std::byte* const places = code + 4 * form.kept;
  if (!form.has_bits) return add_at_indices(code, form.kept, values);
  std::size_t sent = 0;
  for (std::size_t first = 0; first < values.size(); first += 32) {
    for (std::uint32_t bits = word_at(places, first / 32); bits != 0; bits &= bits - 1) {
      const std::size_t place = first + static_cast<std::size_t>(std::countr_zero(bits));
      STORMO_CHECK(place < values.size() && sent < form.kept, "a code of another message");
      add(values[place], code, sent++);
    }
  }
}

}  // namespace stormo::codec::top_k

namespace stormo::codec::threshold {
namespace {

/// Of larger samples the share of larger numbers is known to 8 % at a density of 0.01.
constexpr std::size_t kSample = 16384;

/// About as many values as shall travel have at least this magnitude. 0 does not travel.
std::uint32_t estimate(std::span<const float> values, const CodeKey& key) {
  std::vector<float> sample;
  const std::size_t stride = std::max<std::size_t>(1, values.size() / kSample);
  for (std::size_t i = key.seed % stride; i < values.size(); i += stride) {
    sample.push_back(values[i]);
  }
  const std::int64_t kept = kept_of(std::ssize(sample), key.density);
  return std::max(smallest_of_largest(sample, static_cast<std::size_t>(kept)).magnitude, 1u);
}

}  // namespace

std::int64_t bytes(std::int64_t numbers, double density) { return 8 * kept_of(numbers, density); }

void encode(std::span<float> values, std::byte* code, const CodeKey& key) {
  const auto kept = static_cast<std::size_t>(kept_of(std::ssize(values), key.density));
  if (kept == 0) return;
  std::memset(code, 0, 8 * kept);  // what is not used adds 0 to the first number
  const std::uint32_t least = estimate(values, key);
  const std::size_t begin = key.seed % values.size();
  std::size_t sent = 0;
  const auto send = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      const std::uint32_t m = magnitude(values[i]);
      if (m < least || (sent == kept && m < kInfinity)) continue;
      if (sent == kept) --sent;  // all must see it
      put_word(code, sent, std::bit_cast<std::uint32_t>(values[i]));
      put_word(code + 4 * kept, sent++, static_cast<std::uint32_t>(i));
      values[i] = 0;
    }
  };
  send(begin, values.size());
  send(0, begin);
}

void decode_add(const std::byte* code, std::span<float> values, const CodeKey& key) {
  const auto kept = static_cast<std::size_t>(kept_of(std::ssize(values), key.density));
  add_at_indices(code, kept, values);
}

}  // namespace stormo::codec::threshold
