#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include <stormo/analysis/schedule/moves.h>
#include <stormo/base/ids.h>

namespace stormo::analysis {

/// Stands for one way to build a value out of the ranks' terms: equal ways have equal numbers, and
/// 128 bits let no two different ones meet by chance.
struct Expression {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const Expression&) const = default;
};

/// How the value that each rank holds of one chunk was built. Two values are the same to the last
/// bit when they were built alike. All that a rank reduces in one round is one sum, over its own
/// value and those received, in ascending order of rank; only a sum of two is commutative, since a
/// longer one rounds as its terms come. Internal to analysis/.
class ReductionOrder {
 public:
  explicit ReductionOrder(int ranks) : built_(static_cast<std::size_t>(ranks)) {}

  /// Every rank holds its own term.
  void start();
  /// One round's moves of the chunk, free of the hazards that verify refuses.
  void play(std::span<const Move> round);
  /// The first rank whose value was built in another way than that of rank 0; -1 if there is none.
  Rank first_that_differs() const;

 private:
  struct Operand {
    Rank rank;
    Expression built;
  };

  Expression at(Rank r) const { return built_[static_cast<std::size_t>(r)]; }
  /// Sorts the moves to one rank by sender and combines them with what it has.
  Expression received(std::span<Move> moves);

  std::vector<Expression> built_;
  std::vector<Move> sorted_;
  std::vector<Operand> operands_;
  std::vector<Operand> written_;
};

}  // namespace stormo::analysis
