#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/data/sample_labels.h>

namespace stormo::data {

/// Iterative stratification (Sechidis, Tsoumakas and Vlahavas: On the Stratification of Multi-Label
/// Data, ECML PKDD 2011): distributes samples over subsets so that each has about its share of
/// every label. The label that the fewest remaining samples have comes first. Each of these goes to
/// the subset that lacks most samples of this label, of several to that with most room, of several
/// of these to a random one.
///
/// `sizes`: samples of each subset; their sum is that of `samples`. Unlike in the paper no subset
/// gets more. A subset's share of a label is in proportion to its size. It has less than one sample
/// more or fewer than that of the label that comes first. Other labels have no such bound, because
/// samples that they share with an earlier label are already distributed: if most samples have
/// several labels, those that come last are about where a random order has them.
///
/// The samples of each subset. Takes O(labels * (labels + subsets)) and, for each label of each
/// sample, O(log(subsets)) steps, and labels * subsets numbers of memory.
std::vector<std::vector<std::int64_t>> iterative_stratification(
    std::span<const std::int64_t> samples, const SampleLabels& labels,
    std::span<const std::int64_t> sizes, Rng& rng);

}  // namespace stormo::data
