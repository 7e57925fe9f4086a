#include <stormo/data/iterative_stratification.h>

#include <queue>
#include <tuple>
#include <utility>

#include <stormo/base/check.h>

namespace stormo::data {
namespace {

using Indices = std::vector<std::int64_t>;

class Subsets {
 public:
  /// `having`: by label, the samples that have it. A sample counts as `scale`, so that all shares
  /// are whole numbers.
  Subsets(std::span<const std::int64_t> sizes, std::span<const Indices> having, std::int64_t scale,
          Rng& rng)
      : scale_(scale), rng_(rng), room_(sizes.begin(), sizes.end()), samples_(sizes.size()) {
    for (const std::int64_t size : sizes) {
      Indices& lacking = lacking_.emplace_back();
      for (const Indices& samples : having) lacking.push_back(std::ssize(samples) * size);
    }
  }

  void place(std::span<const std::int64_t> samples, std::size_t label, const SampleLabels& labels) {
    std::priority_queue<Need> needs;
    for (std::size_t s = 0; s < room_.size(); ++s) {
      if (room_[s] > 0) needs.push(need(s, label));
    }
    for (const std::int64_t sample : samples) {
      STORMO_CHECK(!needs.empty(), "the sizes of subsets have the sum of all samples");
      const std::size_t s = std::get<3>(needs.top());
      needs.pop();
      samples_[s].push_back(sample);
      for (const std::int32_t l : labels.of(sample)) {
        lacking_[s][static_cast<std::size_t>(l)] -= scale_;
      }
      if (--room_[s] > 0) needs.push(need(s, label));
    }
  }

  std::vector<Indices> take() { return std::move(samples_); }

 private:
  /// What it lacks of a label, its room, a random number, and which subset it is.
  using Need = std::tuple<std::int64_t, std::int64_t, std::uint32_t, std::size_t>;
  Need need(std::size_t s, std::size_t label) {
    return {lacking_[s][label], room_[s], rng_.next_u32(), s};
  }

  std::int64_t scale_;
  Rng& rng_;
  Indices room_;
  std::vector<Indices> lacking_;  // by subset and label
  std::vector<Indices> samples_;
};

}  // namespace

std::vector<Indices> iterative_stratification(std::span<const std::int64_t> samples,
                                              const SampleLabels& labels,
                                              std::span<const std::int64_t> sizes, Rng& rng) {
  const auto count = static_cast<std::size_t>(labels.count());
  std::vector<Indices> having(count);
  Indices without;
  for (const std::int64_t sample : samples) {
    for (const std::int32_t l : labels.of(sample)) {
      having[static_cast<std::size_t>(l)].push_back(sample);
    }
    if (labels.of(sample).empty()) without.push_back(sample);
  }
  Indices left;  // by label
  for (const Indices& of_label : having) left.push_back(std::ssize(of_label));
  having.emplace_back();  // in place of a label, for samples without one: no subset lacks them
  Subsets subsets(sizes, having, std::ssize(samples), rng);
  having.back() = std::move(without);
  std::vector<bool> is_placed(static_cast<std::size_t>(labels.size()));
  for (;;) {
    std::size_t rarest = count;
    for (std::size_t l = 0; l < count; ++l) {
      if (left[l] > 0 && (rarest == count || left[l] < left[rarest])) rarest = l;
    }
    std::erase_if(having[rarest],
                  [&](std::int64_t i) { return is_placed[static_cast<std::size_t>(i)]; });
    subsets.place(having[rarest], rarest, labels);
    if (rarest == count) return subsets.take();
    for (const std::int64_t sample : having[rarest]) {
      is_placed[static_cast<std::size_t>(sample)] = true;
      for (const std::int32_t l : labels.of(sample)) --left[static_cast<std::size_t>(l)];
    }
  }
}

}  // namespace stormo::data
