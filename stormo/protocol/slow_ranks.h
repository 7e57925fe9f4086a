#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/ids.h>

namespace stormo::protocol {

/// What a rank does in a step besides waiting for others.
enum class StepPart : std::uint8_t { kCompute, kData, kLink, kOptimizer };
inline constexpr std::size_t kNumStepParts = 4;
std::string_view to_string(StepPart part);  ///< "compute", "data", "link", "optimizer"

/// Seconds of a step, by StepPart.
using PartSeconds = std::array<double, kNumStepParts>;

/// One step, or the mean of some, of all ranks.
struct StepSample {
  std::vector<PartSeconds> ranks;
  std::vector<double> sent;  ///< by rank: bytes that its StepPart::kLink is of
  double seconds = 0;        ///< of the step, with waiting
  PartSeconds least{};       ///< a shorter difference cannot be measured
};

/// A rank that takes longer in a part of the step than it should.
struct SlowRank {
  Rank rank = 0;
  StepPart part = StepPart::kCompute;
  double seconds = 0;   ///< that it takes in a step
  double expected = 0;  ///< that it should take: see SlowRanks
  double without = 1;   ///< time of a step if it took that, as a share of what a step takes now

  /// "3.0": how often the expected time; at most kMostRatio, also where nothing is expected.
  double ratio() const;
  static constexpr double kMostRatio = 100;
};

/// Finds ranks that are slow for a while, and tells in which part of the step. A plain value
/// without clock and I/O: O(ranks^2) for each block of samples.
///
/// A rank should take as long as the median of the others that do equal work; of two, as the other.
/// For its link those do that send half as much to twice as much, and it should be as fast. Where
/// no other rank does equal work, it should take as long as in its own first blocks, times what the
/// median of the others has become slower since then. So nobody is slow if all are.
///
/// It is named after kBlocks blocks of kBlock samples in a row in which it took too long, so within
/// 20 samples. Those must be more than twice as many as any rank needed before that became as fast
/// as the others by itself, and more where the samples of blocks often differ. The
/// difference must stand out of how much ranks differed from each other before. So on a busy
/// machine it takes longer, or is not said at all.
class SlowRanks {
 public:
  static constexpr std::size_t kBlock = 5;
  static constexpr std::size_t kBlocks = 3;
  static constexpr std::size_t kWarmUp = 5;  ///< samples that are left out at first
  static constexpr double kRatio = 1.2;      ///< of what it should take, at least
  static constexpr double kShare = 0.04;     ///< of the step's time, at least: the difference

  /// By rank: those with equal numbers do equal work. At least two ranks.
  explicit SlowRanks(std::vector<int> work);

  struct Change {
    SlowRank rank;
    bool begins = true;  ///< else it is as fast as it should be again
  };
  /// The next steps. What has changed by them; nothing between the ends of blocks.
  std::vector<Change> add(StepSample sample);
  /// Those that are named now.
  std::vector<SlowRank> named() const;

 private:
  /// By rank.
  using Parts = std::vector<PartSeconds>;
  using Key = std::pair<Rank, StepPart>;
  /// What some samples say.
  struct Block {
    Parts took;
    Parts longest;  ///< sample
    std::vector<double> sent;
    double seconds = 0;  ///< of a step
    Parts expected;      ///< that they should have taken
    PartSeconds least{};
  };
  struct State {
    std::size_t slow_blocks = 0;  // in a row, up to now
    bool named = false;
    SlowRank last;
  };

  template <class Samples, class Choose>
  Block block_of(const Samples& samples, const Choose& choose) const;
  double expected(const Block& block, const Key& key) const;
  double first(const Key& key) const;
  double usual_difference(std::size_t part, std::size_t judged) const;
  std::size_t needed(std::size_t part, std::size_t judged) const;
  bool is_unsteady(std::size_t part) const;
  bool is_slow_in(const Block& block, const Key& key, double ratio) const;
  double without(const SlowRank& slow) const;
  void look(const Key& key, const Block& recent, std::vector<Change>& changes);

  std::vector<int> work_;
  std::size_t seen_ = 0;
  std::vector<StepSample> samples_;  // of the block that has begun
  std::deque<StepSample> recent_;    // of the last kBlocks blocks
  std::deque<Block> blocks_;         // the last kKept
  std::vector<Parts> first_;         // of the first kBlocks blocks
  std::map<Key, State> states_;
};

}  // namespace stormo::protocol
