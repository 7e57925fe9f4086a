// Who is slow and why, by steps that are made up: seeds with noise, spikes and bursts of load.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/protocol/slow_ranks.h>

#include "tests/long.h"
#include "tests/sanitized.h"

namespace stormo::protocol {
namespace {

constexpr PartSeconds kCommon = {0.1, 0.02, 0.03, 0.01};  // all but what is tested
constexpr StepPart kParts[] = {StepPart::kCompute, StepPart::kData, StepPart::kLink,
                               StepPart::kOptimizer};

struct Noise {
  double spread = 0.05;   ///< standard deviation of the logarithm of each time
  double spikes = 0;      ///< share of the times that are longer by a factor without a limit
  double bursts = 0;      ///< how often a rank is slowed for some steps, per step
  int longest_burst = 0;  ///< steps
};
constexpr Noise kQuiet;
/// Other processes come and go on the cores of all ranks.
constexpr Noise kLoad = {.spread = 0.08, .spikes = 0.1, .bursts = 0.03, .longest_burst = 5};

/// Steps of ranks that wait for each other at the end of each.
class Job {
 public:
  Job(int ranks, std::uint64_t seed, Noise noise = kQuiet)
      : noise_(noise),
        rng_(seed, "steps"),
        typical_(static_cast<std::size_t>(ranks), kCommon),
        sent_(typical_.size(), 1e6),
        burst_(static_cast<std::size_t>(ranks)) {}

  /// Bytes that the link of a rank is of.
  double& sent(Rank rank) { return sent_[static_cast<std::size_t>(rank)]; }
  PartSeconds& of(Rank rank) { return typical_[static_cast<std::size_t>(rank)]; }
  std::size_t size() const { return typical_.size(); }

  StepSample step() {
    StepSample sample{.ranks = typical_, .sent = sent_};
    for (std::size_t r = 0; r < typical_.size(); ++r) {
      Burst& burst = burst_[r];
      if (--burst.steps <= 0) burst.factor = 1;
      if (burst.steps < -kBetweenBursts && rng_.uniform() < noise_.bursts) {
        const auto longest = static_cast<std::uint64_t>(noise_.longest_burst);
        burst = {1.2 + rng_.uniform(), 1 + static_cast<int>(rng_.below(longest))};
      }
      for (double& seconds : sample.ranks[r]) {
        seconds *= burst.factor * std::exp(noise_.spread * normal());
        if (rng_.uniform() < noise_.spikes) seconds *= std::pow(1 - rng_.uniform(), -1 / 1.5);
      }
      const PartSeconds& mine = sample.ranks[r];
      const double busy = std::accumulate(mine.begin(), mine.end(), 0.0);
      sample.seconds = std::max(sample.seconds, busy);
    }
    sample.seconds += 0.01;  // what everybody takes to meet
    return sample;
  }

 private:
  double normal() {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += rng_.uniform();
    return sum - 6;
  }

  static constexpr int kBetweenBursts = 3;
  struct Burst {
    double factor = 1;
    int steps = 0;  ///< left
  };
  Noise noise_;
  Rng rng_;
  std::vector<PartSeconds> typical_;
  std::vector<double> sent_;
  std::vector<Burst> burst_;
};

SlowRanks equals(std::size_t ranks) { return SlowRanks(std::vector<int>(ranks, 0)); }

/// The first change in so many equal steps.
std::optional<SlowRank> named_in(const StepSample& step, SlowRanks slow) {
  for (int i = 0; i < 20; ++i) {
    const auto changes = slow.add(step);
    if (!changes.empty()) return changes[0].rank;
  }
  return {};
}

/// The changes of so many steps; the number of a step is that of the first one that follows.
struct Seen {
  int step = 0;
  SlowRanks::Change change;
};
std::vector<Seen> watch(SlowRanks& ranks, Job& job, int steps) {
  std::vector<Seen> seen;
  for (int step = 1; step <= steps; ++step) {
    for (const SlowRanks::Change& change : ranks.add(job.step())) seen.push_back({step, change});
  }
  return seen;
}

/// Of a sweep: in its short form the first ones, and those of 200 that a simpler rule gets wrong
/// (three blocks in a row, however much their samples differ).
std::vector<std::uint64_t> seeds() {
  std::vector<std::uint64_t> all(is_long_form() ? 400 : kSanitized ? 3 : 25);
  std::iota(all.begin(), all.end(), 0);
  if (is_long_form() || kSanitized) return all;
  for (const std::uint64_t hard : {48, 49, 50, 56, 61, 68, 70, 78, 81, 82, 106, 124, 165, 196}) {
    all.push_back(hard);
  }
  return all;
}

TEST(SlowRanks, NobodyIsNamedInAThousandStepsWithoutASlowOne) {
  for (const int ranks : {2, 3, 4, 8}) {
    for (const std::uint64_t seed : seeds()) {
      for (const Noise& noise : {kQuiet, kLoad}) {
        Job job(ranks, seed, noise);
        SlowRanks slow = equals(job.size());
        for (const Seen& seen : watch(slow, job, 1000)) {
          ADD_FAILURE() << ranks << " ranks, seed " << seed << ", step " << seen.step << ": rank "
                        << seen.change.rank.rank << " " << to_string(seen.change.rank.part) << " "
                        << seen.change.rank.ratio();
        }
      }
    }
  }
}

/// Slowed by 1.3 from some step on: named within 20 of them, with this part and no other one.
TEST(SlowRanks, ARankSlowedByThreeTenthsIsNamedWithItsPartWithinTwentySteps) {
  for (const int ranks : {2, 3, 4, 8}) {
    for (const StepPart part : kParts) {
      for (const std::uint64_t seed : seeds()) {
        Job job(ranks, seed);
        for (Rank r = 0; r < ranks; ++r) job.of(r)[static_cast<std::size_t>(part)] = 0.1;
        SlowRanks slow = equals(job.size());
        const int before = static_cast<int>(seed * 7);
        ASSERT_TRUE(watch(slow, job, before).empty());
        const Rank who = static_cast<Rank>(seed) % ranks;
        job.of(who)[static_cast<std::size_t>(part)] *= 1.3;
        const std::vector<Seen> seen = watch(slow, job, 200);
        ASSERT_EQ(seen.size(), 1u) << ranks << " ranks, seed " << seed << ", " << to_string(part);
        const SlowRank& named = seen[0].change.rank;
        EXPECT_LE(seen[0].step, 20) << ranks << " ranks, seed " << seed;
        EXPECT_TRUE(seen[0].change.begins);
        EXPECT_EQ(named.rank, who);
        EXPECT_EQ(named.part, part);
        EXPECT_NEAR(named.ratio(), 1.3, 0.15);
        EXPECT_EQ(slow.named().size(), 1u);
      }
    }
  }
}

TEST(SlowRanks, ASlowRankIsAlsoNamedOnABusyMachine) {
  for (const std::uint64_t seed : seeds()) {
    Job job(4, seed, kLoad);
    SlowRanks slow = equals(job.size());
    ASSERT_TRUE(watch(slow, job, 100).empty());
    job.of(2)[0] *= 2;
    const std::vector<Seen> seen = watch(slow, job, 200);
    ASSERT_GE(seen.size(), 1u) << "seed " << seed;
    EXPECT_EQ(seen[0].change.rank.rank, 2);
    EXPECT_EQ(seen[0].change.rank.part, StepPart::kCompute);
  }
}

TEST(SlowRanks, WhoIsAsFastAsTheOthersAgainIsNamedNoMore) {
  Job job(4, 1);
  SlowRanks slow = equals(job.size());
  job.of(3)[1] = 0.2;
  ASSERT_EQ(watch(slow, job, 40).size(), 1u);
  job.of(3)[1] = kCommon[1];
  const std::vector<Seen> seen = watch(slow, job, 100);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_FALSE(seen[0].change.begins);
  EXPECT_EQ(seen[0].change.rank.rank, 3);
  EXPECT_LE(seen[0].step, 20);
  EXPECT_TRUE(slow.named().empty());
}

// Two hosts with two ranks each, one of which has the slow line.
TEST(SlowRanks, HalfOfTheRanksMayBeSlow) {
  Job job(4, 2);
  SlowRanks slow = equals(job.size());
  job.of(2)[2] = job.of(3)[2] = 0.1;
  const std::vector<Seen> seen = watch(slow, job, 30);
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].change.rank.rank, 2);
  EXPECT_EQ(seen[1].change.rank.rank, 3);
}

TEST(SlowRanks, NobodyIsSlowIfAllAre) {
  for (const std::vector<int>& work : {std::vector<int>{0, 0, 0}, {0, 1, 2}, {0, 0, 1}}) {
    Job job(3, 3);
    SlowRanks slow(work);
    ASSERT_TRUE(watch(slow, job, 50).empty());
    for (Rank r = 0; r < 3; ++r) {
      for (double& seconds : job.of(r)) seconds *= 2;
    }
    EXPECT_TRUE(watch(slow, job, 200).empty()) << work[1] << work[2];
  }
}

TEST(SlowRanks, StepsOfWarmUpDoNotCount) {
  SlowRanks slow = equals(2);
  Job job(2, 4), first(2, 4);
  first.of(1)[0] = 10;
  ASSERT_TRUE(watch(slow, first, static_cast<int>(SlowRanks::kWarmUp)).empty());
  EXPECT_TRUE(watch(slow, job, 200).empty());
}

// Stages of a pipeline: the second one computes twice as long, which is its work.
TEST(SlowRanks, WhoHasNoEqualIsComparedWithItsOwnPast) {
  Job job(2, 5);
  job.of(1)[0] *= 2;
  SlowRanks slow({0, 1});
  ASSERT_TRUE(watch(slow, job, 100).empty());
  job.of(0)[0] *= 1.5;
  const std::vector<Seen> seen = watch(slow, job, 100);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].change.rank.rank, 0);
  EXPECT_NEAR(seen[0].change.rank.ratio(), 1.5, 0.1);
}

// The first rank of each host sends for the others: 0 and 3, of which the latter has more to send.
TEST(SlowRanks, LinksAreComparedByTheRateOfThoseThatSendAboutAsMuch) {
  Job job(6, 7);
  for (Rank r = 0; r < 6; ++r) {
    const double share = r == 0 ? 1 : r == 3 ? 1.5 : 0;
    job.sent(r) = share * 1e6;
    job.of(r)[2] = share * 0.1;
  }
  SlowRanks slow = equals(job.size());
  ASSERT_TRUE(watch(slow, job, 100).empty());
  job.of(0)[2] *= 1.4;
  const std::vector<Seen> seen = watch(slow, job, 40);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].change.rank.rank, 0);
  EXPECT_EQ(seen[0].change.rank.part, StepPart::kLink);
}

TEST(SlowRanks, DifferencesThatCannotBeMeasuredAreNone) {
  const PartSeconds fast = {0.1, 0, 0.02, 0}, slow = {0.1, 0, 0.03, 0};
  EXPECT_TRUE(named_in({{fast, slow}, {1, 1}, 0.15}, equals(2)));
  EXPECT_FALSE(named_in({{fast, slow}, {1, 1}, 0.15, {0, 0, 0.011, 0}}, equals(2)));
}

// What does not matter for the job is not said, whatever the ratio is.
TEST(SlowRanks, AShortTimeMayBeManyTimesThatOfOthers) {
  Job job(4, 6);
  for (Rank r = 0; r < 4; ++r) job.of(r)[1] = 1e-4;
  SlowRanks slow = equals(job.size());
  job.of(1)[1] = 3e-3;
  EXPECT_TRUE(watch(slow, job, 200).empty());
  job.of(1)[1] = 3e-2;
  const std::vector<Seen> seen = watch(slow, job, 200);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].change.rank.ratio(), SlowRank::kMostRatio);
}

TEST(SlowRanks, TellsHowLongAStepWouldTakeWithoutIt) {
  // the last rank is ready after 130 ms, the one before after 100 ms; then all take 20 ms
  const PartSeconds fast = {0.08, 0, 0, 0.02}, slow = {0.11, 0, 0, 0.02};
  const auto named = named_in({{fast, fast, slow}, {1, 1, 1}, 0.15}, equals(3));
  ASSERT_TRUE(named);
  EXPECT_EQ(named->rank, 2);
  EXPECT_NEAR(named->without, 0.12 / 0.15, 1e-9);
  // another one is ready after 115 ms: the job would gain less
  const PartSeconds other = {0.09, 0, 0, 0.025};
  const auto second = named_in({{fast, other, slow}, {1, 1, 1}, 0.15}, equals(3));
  ASSERT_TRUE(second);
  EXPECT_NEAR(second->without, 0.135 / 0.15, 1e-9);
  // what is hidden behind computation costs nothing
  const PartSeconds overlapped = {0.1, 0, 0.1, 0}, hidden = {0.1, 0, 0.05, 0};
  const auto third = named_in({{hidden, overlapped}, {1, 1}, 0.1}, equals(2));
  ASSERT_TRUE(third);
  EXPECT_EQ(third->part, StepPart::kLink);
  EXPECT_NEAR(third->without, 1, 1e-9);
}

}  // namespace
}  // namespace stormo::protocol
