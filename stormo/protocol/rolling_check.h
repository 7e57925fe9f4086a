#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>

// What a check of equal states decides, as plain values without clock and I/O: which part of a
// state is looked at in a step, whether all have found the same, and who is wrong too often.
namespace stormo::protocol {

/// So many numbers stand for a hash in a sum over ranks.
inline constexpr std::size_t kHashNumbers = 8;
using HashNumbers = std::span<double, kHashNumbers>;
using HashSums = std::span<const double, kHashNumbers>;

/// Writes the numbers of a hash. They are added up over ranks, in any order.
void put_hash(std::uint64_t hash, HashNumbers numbers);
/// Whether all of `ranks` ranks have the same hash, by the sums of their numbers. Exact for up to
/// 2^21 ranks.
bool are_equal(HashSums sums, int ranks);

/// Goes through a state in slices, so that all of it is looked at once in every steps() steps. All
/// ranks hold equal ones, and give them equal inputs.
class RollingCheck {
 public:
  static constexpr std::int64_t kAutomatic = -1;
  /// Of the time of a step, with kAutomatic.
  static constexpr double kMostCost = 0.01;

  /// `steps`: a positive number; kAutomatic: as few as cost at most kMostCost, found again after
  /// each pass.
  explicit RollingCheck(std::int64_t steps);

  std::int64_t steps() const { return steps_; }
  /// Whether the next slice is the first one of a pass.
  bool begins() const { return at_ == 0; }
  /// Of so many pieces, [first, last) are looked at in this step.
  struct Slice {
    std::size_t first = 0, last = 0;
    bool operator==(const Slice&) const = default;
  };
  Slice slice(std::size_t pieces) const;

  /// What this rank's look at the slice has cost, and how long its step was.
  void note(double look_s, double step_s);
  /// The steps that this rank would take for a pass. Added up over the ranks for end_step(). 0
  /// without kAutomatic.
  double wanted() const;
  void end_step(double sum_of_wanted, int ranks);
  /// Everything has been looked at: another pass begins.
  void restart();

 private:
  bool automatic_;
  std::int64_t steps_;
  std::int64_t at_ = 0;  // slices of this pass that are done
  double looks_s_ = 0;   // of this pass
  double step_s_ = 0;    // the shortest of this pass; 0: none
};

/// How often ranks had wrong bits. Once is chance; who has them again and again has a fault.
class FaultyRanks {
 public:
  static constexpr std::size_t kMost = 3;
  static constexpr std::int64_t kWithin = 1000;  ///< steps

  /// The rank of this name was wrong in this step. Whether that was the kMost-th time within
  /// kWithin steps.
  bool note(const std::string& name, std::int64_t step);

 private:
  std::map<std::string, std::deque<std::int64_t>> steps_;
};

}  // namespace stormo::protocol
