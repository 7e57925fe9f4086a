#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stormo::cli {

/// Features of all samples, and of one.
inline constexpr std::int64_t kFeatures = 1'000'000;
inline constexpr std::size_t kNonZeros = 50;

/// How often features occur.
enum class FeatureKind : std::uint8_t {
  kUniform,  ///< all equally often
  kSkewed,   ///< feature i of n with density proportional to (i / n)^(-3/4), as words of a text
};

/// Samples with kNonZeros distinct features, in ascending order. The label says whether a fixed
/// weight for each feature, of equal distribution, gives a positive sum.
class SparseSamples {
 public:
  SparseSamples(FeatureKind kind, std::uint64_t seed);

  struct Sample {
    std::span<const std::int64_t> features;
    std::span<const float> values;
    float label = 0;  ///< 0 or 1
  };
  std::size_t size() const { return labels_.size(); }
  Sample sample(std::size_t i) const;

 private:
  std::vector<std::int64_t> features_;
  std::vector<float> values_, labels_;
};

}  // namespace stormo::cli
