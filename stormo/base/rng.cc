#include <stormo/base/rng.h>

#include <numeric>
#include <utility>

namespace stormo {
namespace {

constexpr std::uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> x,
                                        std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{kMul0} * x[0];
    const std::uint64_t p1 = std::uint64_t{kMul1} * x[2];
    x = {static_cast<std::uint32_t>(p1 >> 32) ^ x[1] ^ k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ x[3] ^ k[1], static_cast<std::uint32_t>(p0)};
    k = {k[0] + kWeyl0, k[1] + kWeyl1};
  }
  return x;
}

std::uint64_t fnv1a(std::string_view text, std::uint64_t basis) {
  std::uint64_t h = basis;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

Rng::Rng(std::uint64_t seed, std::string_view purpose, std::uint64_t index) {
  const std::uint64_t stream = fnv1a(purpose);
  key_ = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  // words 0-1 count blocks; words 2-3 name the stream
  const std::uint64_t name = stream ^ (index * 0x9E3779B97F4A7C15ull);
  counter_ = {0, 0, static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32)};
}

void Rng::refill() {
  block_ = philox4x32(counter_, key_);
  used_ = 0;
  if (++counter_[0] == 0) ++counter_[1];
}

std::uint32_t Rng::next_u32() {
  if (used_ == 4) refill();
  return block_[static_cast<std::size_t>(used_++)];
}

std::uint64_t Rng::next_u64() {
  const std::uint64_t low = next_u32();
  return low | (std::uint64_t{next_u32()} << 32);
}

std::uint64_t Rng::below(std::uint64_t bound) {
  const std::uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
  std::uint64_t x = next_u64();
  while (x >= limit) x = next_u64();
  return x % bound;
}

double Rng::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1.0p-53; }

void permutation(Rng& rng, std::span<std::int64_t> out) {
  std::iota(out.begin(), out.end(), std::int64_t{0});
  for (std::size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[rng.below(i)]);
}

}  // namespace stormo
