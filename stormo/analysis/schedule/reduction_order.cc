#include <stormo/analysis/schedule/reduction_order.h>

#include <algorithm>
#include <utility>

namespace stormo::analysis {
namespace {

/// The finalizer of SplitMix64: every bit of the result depends on every bit of `x`.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// A hash of the sequence a, b, ...: what is appended last is not interchangeable with the rest.
Expression append(const Expression& a, const Expression& b) {
  return {mix(a.high * 3 + mix(b.high ^ 0x9e3779b97f4a7c15u)),
          mix(a.low * 5 + mix(b.low + 0xd1b54a32d192ed03u))};
}

}  // namespace

Expression term(int n) { return append({1, 2}, {static_cast<std::uint64_t>(n), 3}); }

Expression sum_of(Expression a, Expression b) {
  if (b < a) std::swap(a, b);
  return append(append({2, 0}, a), b);
}

void ReductionOrder::start() {
  for (std::size_t r = 0; r < built_.size(); ++r) built_[r] = term(static_cast<Rank>(r));
}

void ReductionOrder::play(std::span<const Move> round) {
  sorted_.assign(round.begin(), round.end());
  std::ranges::sort(sorted_, {}, [](const Move& m) { return m.transfer.to; });
  written_.clear();
  for (std::size_t begin = 0; begin < sorted_.size();) {
    const Rank to = sorted_[begin].transfer.to;
    std::size_t end = begin;
    while (end < sorted_.size() && sorted_[end].transfer.to == to) ++end;
    written_.push_back({to, received(std::span(sorted_).subspan(begin, end - begin))});
    begin = end;
  }
  for (const Operand& w : written_) built_[static_cast<std::size_t>(w.rank)] = w.built;
}

Expression ReductionOrder::received(std::span<Move> moves) {
  if (moves.front().transfer.how == plan::ReceiveOp::kCopy) return at(moves.front().transfer.from);
  const Rank to = moves.front().transfer.to;
  operands_.assign(1, {to, at(to)});
  for (const Move& m : moves) operands_.push_back({m.transfer.from, at(m.transfer.from)});
  if (operands_.size() == 2) return sum_of(operands_[0].built, operands_[1].built);
  std::ranges::sort(operands_, {}, &Operand::rank);
  Expression sum{operands_.size(), 0};
  for (const Operand& o : operands_) sum = append(sum, o.built);
  return sum;
}

Rank ReductionOrder::first_that_differs() const {
  const auto found =
      std::ranges::find_if(built_, [&](const Expression& e) { return e != built_.front(); });
  return found == built_.end() ? -1 : static_cast<Rank>(found - built_.begin());
}

}  // namespace stormo::analysis
