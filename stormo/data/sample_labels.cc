#include <stormo/data/sample_labels.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include <stormo/base/check.h>

namespace stormo::data {

SampleLabels::SampleLabels(std::vector<std::int32_t> classes) : labels_(std::move(classes)) {
  count_labels();
}

SampleLabels::SampleLabels(const std::vector<std::vector<std::int32_t>>& sets) {
  bool several = false;
  for (std::vector<std::int32_t> set : sets) {
    std::ranges::sort(set);
    const auto twice = std::ranges::unique(set);
    set.erase(twice.begin(), twice.end());
    labels_.insert(labels_.end(), set.begin(), set.end());
    ends_.push_back(std::ssize(labels_));
    several = several || set.size() != 1;
  }
  if (!several) ends_.clear();
  count_labels();
}

void SampleLabels::count_labels() {
  for (const std::int32_t label : labels_) {
    STORMO_CHECK(label >= 0, "labels count from 0");
    count_ = std::max(count_, std::int64_t{label} + 1);
  }
}

std::int64_t SampleLabels::size() const {
  return one_each() ? std::ssize(labels_) : std::ssize(ends_);
}

std::span<const std::int32_t> SampleLabels::of(std::int64_t sample) const {
  const auto i = static_cast<std::size_t>(sample);
  if (one_each()) return all().subspan(i, 1);
  const auto begin = static_cast<std::size_t>(i == 0 ? 0 : ends_[i - 1]);
  return all().subspan(begin, static_cast<std::size_t>(ends_[i]) - begin);
}

}  // namespace stormo::data
