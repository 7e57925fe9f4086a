#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace stormo {

/// Ten rounds of Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): a
/// block of four random words as a pure function of a counter and a key.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// Counter-based generator over philox4x32. A stream is named by (seed, purpose, index): streams of
/// different purposes are independent, and any stream can be made without drawing from another one
/// first.
class Rng {
 public:
  Rng(std::uint64_t seed, std::string_view purpose, std::uint64_t index = 0);

  std::uint32_t next_u32();
  std::uint64_t next_u64();
  /// Uniform in [0, bound), without modulo bias; bound > 0.
  std::uint64_t below(std::uint64_t bound);
  /// Uniform in [0, 1).
  double uniform();

 private:
  void refill();
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint32_t, 4> block_{};
  int used_ = 4;
};

/// Fills `out` with a random permutation of 0 .. out.size()-1 (Fisher-Yates).
void permutation(Rng& rng, std::span<std::int64_t> out);

/// FNV-1a, for naming streams and fingerprints; not for untrusted input.
std::uint64_t fnv1a(std::string_view text, std::uint64_t basis = 0xcbf29ce484222325ull);

}  // namespace stormo
