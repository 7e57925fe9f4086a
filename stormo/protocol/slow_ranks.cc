#include <stormo/protocol/slow_ranks.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include <stormo/base/check.h>

namespace stormo::protocol {
namespace {

constexpr std::size_t kKept = 40;           // blocks that tell how much ranks differ
constexpr std::size_t kMostBlocks = 9;      // in a row, that a rank must be slow
constexpr std::size_t kUnsteadyBlocks = 7;  // likewise, while the samples of blocks differ
constexpr double kUnsteady = 1.5;           // longest to shortest of a block's samples that differ
constexpr double kUnsteadyShare = 0.1;      // of the blocks of all ranks: those of such samples
constexpr double kSlowBlock = 1.08;       // of what a rank should take: a block in which it is slow
constexpr double kSlowBlockShare = 0.03;  // of the step's time: likewise
/// A difference, as a logarithm, stands out if it is so many times the usual one of a mean of as
/// many blocks.
constexpr double kStandsOut = 4;
constexpr double kLeastUsual = 0.01;
/// Times below this share of a step are equal: whatever their ratio is, they do not matter.
constexpr double kFloor = 0.02;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 != 0) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double difference(double took, double expected, double step_seconds) {
  const double floor = kFloor * step_seconds;
  return std::log((took + floor) / (expected + floor));
}

double sum_of(const PartSeconds& parts) { return std::accumulate(parts.begin(), parts.end(), 0.0); }

constexpr std::size_t at(StepPart part) { return static_cast<std::size_t>(part); }
constexpr std::size_t at(Rank rank) { return static_cast<std::size_t>(rank); }

}  // namespace

std::string_view to_string(StepPart part) {
  switch (part) {
    case StepPart::kCompute: return "compute";
    case StepPart::kData: return "data";
    case StepPart::kLink: return "link";
    case StepPart::kOptimizer: return "optimizer";
  }
  return "unknown";
}

double SlowRank::ratio() const {
  return seconds < kMostRatio * expected ? seconds / expected : kMostRatio;
}

SlowRanks::SlowRanks(std::vector<int> work) : work_(std::move(work)) {
  STORMO_CHECK(work_.size() > 1, "one rank alone is not slow");
  for (std::size_t r = 0; r < work_.size(); ++r) {
    for (std::size_t part = 0; part < kNumStepParts; ++part) {
      states_[{static_cast<Rank>(r), static_cast<StepPart>(part)}];
    }
  }
}

std::vector<SlowRanks::Change> SlowRanks::add(StepSample sample) {
  STORMO_CHECK(sample.ranks.size() == work_.size(), "a sample of other ranks");
  if (++seen_ <= kWarmUp) return {};
  samples_.push_back(sample);
  recent_.push_back(std::move(sample));
  if (recent_.size() > kBlock * kBlocks) recent_.pop_front();
  if (samples_.size() < kBlock) return {};
  // who is slow is slow in all steps; others may be disturbed in any of them
  blocks_.push_back(
      block_of(samples_, [](const auto& values) { return std::ranges::min(values); }));
  blocks_.back().longest =
      block_of(samples_, [](const auto& values) { return std::ranges::max(values); }).took;
  if (blocks_.size() > kKept) blocks_.pop_front();
  samples_.clear();
  if (first_.size() < kBlocks) first_.push_back(blocks_.back().took);
  for (auto& [key, state] : states_) {
    state.slow_blocks = is_slow_in(blocks_.back(), key, kSlowBlock) ? state.slow_blocks + 1 : 0;
  }
  if (blocks_.size() < kBlocks) return {};
  const Block recent = block_of(recent_, median);
  std::vector<Change> changes;
  for (const auto& [key, state] : states_) look(key, recent, changes);
  return changes;
}

std::vector<SlowRank> SlowRanks::named() const {
  std::vector<SlowRank> out;
  for (const auto& [key, state] : states_) {
    if (state.named) out.push_back(state.last);
  }
  return out;
}

template <class Samples, class Choose>
SlowRanks::Block SlowRanks::block_of(const Samples& samples, const Choose& choose) const {
  const auto over_samples = [&](const auto& value_of) {
    std::vector<double> values;
    for (const StepSample& s : samples) values.push_back(value_of(s));
    return choose(std::move(values));
  };
  Block block;
  block.took.resize(work_.size());
  block.seconds = over_samples([](const StepSample& s) { return s.seconds; });
  for (std::size_t r = 0; r < work_.size(); ++r) {
    block.sent.push_back(over_samples([&](const StepSample& s) { return s.sent[r]; }));
    for (std::size_t part = 0; part < kNumStepParts; ++part) {
      block.took[r][part] = over_samples([&](const StepSample& s) { return s.ranks[r][part]; });
    }
  }
  block.least = samples.back().least;
  block.expected = block.took;
  for (const auto& [key, state] : states_) {
    block.expected[at(key.first)][at(key.second)] = expected(block, key);
  }
  return block;
}

/// What a rank should take while all ranks take so long.
double SlowRanks::expected(const Block& block, const Key& key) const {
  const std::size_t rank = at(key.first), part = at(key.second);
  std::vector<double> equals;
  for (std::size_t r = 0; r < work_.size(); ++r) {
    if (r == rank || work_[r] != work_[rank]) continue;
    const double as_much = key.second == StepPart::kLink ? block.sent[rank] / block.sent[r] : 1;
    if (as_much >= 0.5 && as_much <= 2) equals.push_back(as_much * block.took[r][part]);
  }
  if (!equals.empty()) return median(std::move(equals));
  if (first_.size() < kBlocks) return block.took[rank][part];
  std::vector<double> slower;
  for (std::size_t r = 0; r < work_.size(); ++r) {
    const Key other(static_cast<Rank>(r), key.second);
    if (r == rank) continue;
    slower.push_back(difference(block.took[r][part], first(other), block.seconds));
  }
  const double floor = kFloor * block.seconds;
  return (first(key) + floor) * std::exp(std::max(0.0, median(std::move(slower)))) - floor;
}

/// What a rank took at first.
double SlowRanks::first(const Key& key) const {
  std::vector<double> values;
  for (const Parts& block : first_) values.push_back(block[at(key.first)][at(key.second)]);
  return median(std::move(values));
}

/// By how much blocks of ranks differ from what they should take, besides what a rank always
/// differs, as a logarithm: of all but the last `judged` ones, the deviation that one in thirty
/// exceeds, in units of the standard deviation.
double SlowRanks::usual_difference(std::size_t part, std::size_t judged) const {
  constexpr double kOneInThirty = 2.13;
  if (blocks_.size() < judged + 2) return kLeastUsual;
  const auto end = blocks_.end() - static_cast<std::ptrdiff_t>(judged);
  std::vector<double> all;
  for (std::size_t r = 0; r < work_.size(); ++r) {
    std::vector<double> mine;
    std::transform(blocks_.begin(), end, std::back_inserter(mine), [&](const Block& b) {
      return difference(b.took[r][part], b.expected[r][part], b.seconds);
    });
    const double middle = median(mine);
    for (const double value : mine) all.push_back(std::abs(value - middle));
  }
  const auto exceeded = all.begin() + static_cast<std::ptrdiff_t>((all.size() - 1) * 29 / 30);
  std::ranges::nth_element(all, exceeded);
  return std::max(kLeastUsual, *exceeded / kOneInThirty);
}

/// Blocks in a row: more than twice as many as some rank was slow in that became faster by itself,
/// before the last `judged` ones.
std::size_t SlowRanks::needed(std::size_t part, std::size_t judged) const {
  std::size_t longest = 0;
  for (std::size_t r = 0; r < work_.size(); ++r) {
    const Key key(static_cast<Rank>(r), static_cast<StepPart>(part));
    std::size_t in_a_row = 0;
    for (std::size_t b = 0; b + judged < blocks_.size(); ++b) {
      in_a_row = is_slow_in(blocks_[b], key, kRatio) ? in_a_row + 1 : 0;
      longest = std::max(longest, in_a_row);
    }
  }
  return std::clamp(2 * longest + 1, is_unsteady(part) ? kUnsteadyBlocks : kBlocks, kMostBlocks);
}

/// Whether something disturbs single samples now and then. Then it does so in several blocks in a
/// row, too, by chance.
bool SlowRanks::is_unsteady(std::size_t part) const {
  std::size_t unsteady = 0;
  for (const Block& b : blocks_) {
    for (std::size_t r = 0; r < work_.size(); ++r) {
      const double differ = difference(b.longest[r][part], b.took[r][part], b.seconds);
      unsteady += differ > std::log(kUnsteady) ? 1 : 0;
    }
  }
  const auto all = static_cast<double>(blocks_.size() * work_.size());
  return static_cast<double>(unsteady) > kUnsteadyShare * all;
}

bool SlowRanks::is_slow_in(const Block& block, const Key& key, double ratio) const {
  const double took = block.took[at(key.first)][at(key.second)];
  const double should = block.expected[at(key.first)][at(key.second)];
  return took >= ratio * should &&
         took - should >= std::max(kSlowBlockShare * block.seconds, block.least[at(key.second)]);
}

/// Exact where all ranks wait for each other in every step and nothing overlaps: the last one to be
/// ready decides when the others go on.
double SlowRanks::without(const SlowRank& slow) const {
  double now = 0, then = 0;
  for (const StepSample& s : recent_) {
    double last = 0, last_without = 0;
    for (std::size_t r = 0; r < s.ranks.size(); ++r) {
      const double busy = sum_of(s.ranks[r]);
      const double took = s.ranks[r][at(slow.part)];
      const double less =
          r == at(slow.rank) ? took * (1 - std::min(1.0, slow.expected / slow.seconds)) : 0;
      last = std::max(last, std::min(s.seconds, busy));
      last_without = std::max(last_without, std::min(s.seconds, busy - less));
    }
    now += s.seconds;
    then += s.seconds - (last - last_without);
  }
  return now > 0 ? then / now : 1;
}

void SlowRanks::look(const Key& key, const Block& recent, std::vector<Change>& changes) {
  State& state = states_[key];
  const std::size_t part = at(key.second);
  SlowRank now{.rank = key.first,
               .part = key.second,
               .seconds = recent.took[at(key.first)][part],
               .expected = recent.expected[at(key.first)][part]};
  if (state.named) {
    now.without = without(now);
    state.last = now;
    if (std::any_of(blocks_.end() - kBlocks, blocks_.end(),
                    [&](const Block& b) { return is_slow_in(b, key, kSlowBlock); })) {
      return;
    }
    state.named = false;
    changes.push_back({now, /*begins=*/false});
    return;
  }
  const bool matters =
      now.seconds >= kRatio * now.expected && now.seconds - now.expected >= kShare * recent.seconds;
  if (!matters || state.slow_blocks < needed(part, state.slow_blocks)) return;
  const double usual =
      usual_difference(part, state.slow_blocks) / std::sqrt(static_cast<double>(state.slow_blocks));
  if (difference(now.seconds, now.expected, recent.seconds) < kStandsOut * usual) return;
  now.without = without(now);
  state.named = true;
  state.last = now;
  changes.push_back({now, /*begins=*/true});
}

}  // namespace stormo::protocol
