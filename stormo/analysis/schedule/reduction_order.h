#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include <stormo/analysis/schedule/moves.h>
#include <stormo/base/ids.h>

namespace stormo::analysis {

/// A 128-bit hash of the order in which a value was computed from the ranks' terms. Equal orders
/// have equal hashes; a collision of different orders is practically impossible.
struct Expression {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const Expression&) const = default;
};

/// Term number n.
Expression term(int n);
/// A sum of two values, which is commutative.
Expression sum_of(Expression a, Expression b);

/// Tracks in which order each rank's value of one chunk was computed. Two values have the same bits
/// if their orders are equal. All values that a rank reduces in one round are one sum over its own
/// value and the received ones, in ascending order of rank. Only sums of two terms are commutative,
/// since the rounding of longer ones depends on the order. Internal to analysis/.
class ReductionOrder {
 public:
  explicit ReductionOrder(int ranks) : built_(static_cast<std::size_t>(ranks)) {}

  /// Start: every rank has its own term.
  void start();
  /// Start: rank r has the r-th of `terms`, one for each rank.
  void start(std::span<const Expression> terms) { built_.assign(terms.begin(), terms.end()); }
  /// Applies the moves of the chunk in one round, which must have none of the conflicts that verify
  /// refuses.
  void play(std::span<const Move> round);
  /// The first rank whose value was computed in another order than that of rank 0; -1 if there is
  /// none.
  Rank first_that_differs() const;
  /// How the value of rank r was computed.
  Expression at(Rank r) const { return built_[static_cast<std::size_t>(r)]; }

 private:
  struct Operand {
    Rank rank;
    Expression built;
  };

  /// Sorts the moves to one rank by sender and combines them with what it has.
  Expression received(std::span<Move> moves);

  std::vector<Expression> built_;
  std::vector<Move> sorted_;
  std::vector<Operand> operands_;
  std::vector<Operand> written_;
};

}  // namespace stormo::analysis
