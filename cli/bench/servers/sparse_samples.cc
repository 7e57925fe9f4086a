#include <cli/bench/servers/sparse_samples.h>

#include <algorithm>
#include <set>

#include <stormo/base/rng.h>

namespace stormo::cli {
namespace {

constexpr std::size_t kSamples = 4096;

std::int64_t draw(Rng& rng, FeatureKind kind) {
  const double u = rng.uniform();
  const double part = kind == FeatureKind::kUniform ? u : u * u * u * u;
  return std::min(kFeatures - 1, static_cast<std::int64_t>(part * double{kFeatures}));
}

/// The weight of a feature that labels come from: a hash of its number, from -1 to 1.
float true_weight(std::int64_t feature) {
  Rng rng(static_cast<std::uint64_t>(feature), "weight");
  return static_cast<float>(2 * rng.uniform() - 1);
}

}  // namespace

SparseSamples::SparseSamples(FeatureKind kind, std::uint64_t seed) {
  Rng rng(seed, "samples");
  for (std::size_t i = 0; i < kSamples; ++i) {
    std::set<std::int64_t> features;
    while (features.size() < kNonZeros) features.insert(draw(rng, kind));
    float sum = 0;
    for (const std::int64_t f : features) {
      features_.push_back(f);
      values_.push_back(static_cast<float>(0.5 + rng.uniform()));
      sum += values_.back() * true_weight(f);
    }
    labels_.push_back(sum > 0 ? 1.0F : 0.0F);
  }
}

SparseSamples::Sample SparseSamples::sample(std::size_t i) const {
  return {.features = std::span(features_).subspan(i * kNonZeros, kNonZeros),
          .values = std::span(values_).subspan(i * kNonZeros, kNonZeros),
          .label = labels_[i]};
}

}  // namespace stormo::cli
