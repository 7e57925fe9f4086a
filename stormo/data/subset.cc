#include <stormo/data/subset.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <stormo/base/check.h>
#include <stormo/base/rng.h>
#include <stormo/data/fingerprint.h>

namespace stormo::data {

Subset::Subset(std::shared_ptr<const Dataset> all, std::vector<std::int64_t> samples)
    : all_(std::move(all)), samples_(std::move(samples)) {
  STORMO_CHECK(!samples_.empty(), "a subset has a sample");
  const std::span<const std::int32_t> lengths = all_->lengths();
  for (const std::int64_t sample : samples_) {
    STORMO_CHECK(sample >= 0 && sample < all_->size(), "a sample of the whole");
    if (!lengths.empty()) lengths_.push_back(lengths[static_cast<std::size_t>(sample)]);
  }
}

Batch Subset::get(std::span<const std::int64_t> indices, std::int64_t epoch) const {
  std::vector<std::int64_t> of_all;
  for (const std::int64_t index : indices) {
    STORMO_CHECK(index >= 0 && index < size(), "sample index out of range");
    of_all.push_back(samples_[static_cast<std::size_t>(index)]);
  }
  return all_->get(of_all, epoch);
}

SampleLabels Subset::strata() const {
  const SampleLabels all = all_->strata();
  if (all.empty()) return {};
  std::vector<std::vector<std::int32_t>> sets;
  std::vector<std::int32_t> classes;
  for (const std::int64_t sample : samples_) {
    const std::span<const std::int32_t> labels = all.of(sample);
    if (all.one_each()) {
      classes.push_back(labels.front());
    } else {
      sets.emplace_back(labels.begin(), labels.end());
    }
  }
  return all.one_each() ? SampleLabels(std::move(classes)) : SampleLabels(sets);
}

std::uint64_t Subset::fingerprint() const {
  const std::uint64_t all = all_->fingerprint();
  if (all == 0) return 0;
  Fingerprint content;
  content.add(static_cast<std::int64_t>(all));
  content.add(std::as_bytes(std::span(samples_)));
  return content.value();
}

Result<HeldOut> hold_out(std::int64_t samples, double validation_share, double test_share,
                         std::uint64_t seed) {
  const auto share_of = [samples](double share) {
    return static_cast<std::ptrdiff_t>(std::llround(static_cast<double>(samples) * share));
  };
  const std::ptrdiff_t validation = share_of(validation_share), test = share_of(test_share);
  if ((validation_share > 0 && validation == 0) || (test_share > 0 && test == 0) ||
      validation + test >= samples) {
    return invalid_argument(fmt::format(
        "data.validation_fraction {} and data.test_fraction {} of {} samples leave a part without "
        "any; choose others, or name files by data.validation and data.test",
        validation_share, test_share, samples));
  }
  std::vector<std::int64_t> order(static_cast<std::size_t>(samples));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  Rng rng(seed, "hold out");
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  const auto first = order.begin() + validation, second = first + test;
  std::sort(order.begin(), first);
  std::sort(first, second);
  std::sort(second, order.end());
  return HeldOut{.training = {second, order.end()},
                 .validation = {order.begin(), first},
                 .test = {first, second}};
}

}  // namespace stormo::data
