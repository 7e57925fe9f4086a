#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace stormo::protocol {

/// Push-sum of one rank (Kempe, Dobra, Gehrke, FOCS 2003; SGP of Assran et al., ICML 2019): the
/// mean of all ranks over links of one direction. A rank has a value and a weight, and pushes equal
/// shares of both to others whenever it likes; value / weight goes to the mean of all values. It
/// has no clock and sends nothing: its owner brings pushes to their receivers, where they may be
/// lost, late, doubled, and come in any order.
///
/// A push says what has gone over its link since the beginning, not what is new (Hadjicostis,
/// Vaidya, Dominguez-Garcia, IEEE TAC 2016). So the next one that arrives makes up for those that
/// were lost, and no mass is. Weights are whole numbers of units, and add up exactly.
///
/// A tensor has one such value for each element, with one weight for all.
class PushSum {
 public:
  static constexpr std::uint64_t kOne = std::uint64_t{1} << 40;  ///< units of a weight of 1

  /// `value` has the weight 1.
  PushSum(int ranks, double value);

  /// All that one rank has pushed to another.
  struct Push {
    std::uint64_t number = 0;  ///< of pushes on this link
    std::uint64_t weight = 0;  ///< units, modulo 2^64
    double value = 0;
  };
  /// Keeps one share, and gives one to each of `to` that is not lost: what to send them.
  std::vector<std::pair<int, Push>> push(std::span<const int> to);
  /// Takes what is new since the last push from there that has come.
  void receive(int from, const Push& push);
  /// `rank` will push nothing more. What it has, and what is on its way to it or from it, is lost
  /// for all: see balance().
  void lose(int rank);

  /// A change of the value by something else, such as a gradient.
  void add(double change) { value_ += change; }

  std::uint64_t weight() const { return weight_; }
  double value() const { return value_; }
  double mean() const { return value_ / (static_cast<double>(weight_) / kOne); }
  /// Units that this rank has given to another, less those that it has from there. All ranks that
  /// are left have lost 1 for each lost rank, and their balances with these: exactly so much is
  /// missing in the sum of all weights.
  std::int64_t balance(int rank) const;

 private:
  struct Link {
    Push given;
    Push taken;
    bool lost = false;
  };
  std::vector<Link> links_;  // by rank
  std::uint64_t weight_ = kOne;
  double value_;
};

}  // namespace stormo::protocol
