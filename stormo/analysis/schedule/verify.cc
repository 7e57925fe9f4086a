#include <stormo/analysis/schedule/verify.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <stormo/analysis/schedule/moves.h>
#include <stormo/analysis/schedule/reduction_order.h>
#include <stormo/plan/bad_plan.h>
#include <stormo/plan/limits.h>

namespace stormo::analysis {
namespace {

using plan::GoalKind;
using plan::ReceiveOp;
using plan::Schedule;
using plan::Transfer;

using plan::bad;

std::string describe(const Transfer& t) {
  return std::to_string(t.from) + ">" + std::to_string(t.to) +
         (t.how == ReceiveOp::kReduce ? " +c" : " =c") + std::to_string(t.chunk);
}

Status in_round(std::size_t round, const Transfer& t, std::string reason) {
  return bad("round " + std::to_string(round) + ": " + describe(t) + ": " + std::move(reason));
}

Status check_ranges(const Schedule& s) {
  if (s.ranks < 1 || s.ranks > plan::kMaxRanks) return bad("ranks out of range");
  if (s.chunks < 1 || s.chunks > plan::kMaxChunks) return bad("chunks out of range");
  if (s.goal.kind > plan::kGoalKinds.back()) return bad("the goal is of no known kind");
  if (s.goal.root < 0 || s.goal.root >= s.ranks) return bad("the root is not a rank");
  if (s.rounds.size() > static_cast<std::size_t>(plan::kMaxRounds)) return bad("too many rounds");
  const auto is_rank = [&](Rank r) { return r >= 0 && r < s.ranks; };
  for (std::size_t i = 0; i < s.rounds.size(); ++i) {
    if (s.rounds[i].empty()) {
      return bad("round " + std::to_string(i) + " has no transfers; remove it");
    }
    for (const Transfer& t : s.rounds[i]) {
      if (!is_rank(t.from) || !is_rank(t.to)) return in_round(i, t, "no such rank");
      if (t.chunk < 0 || t.chunk >= s.chunks) return in_round(i, t, "no such chunk");
      if (t.from == t.to) return in_round(i, t, "a rank sends to itself");
      if (t.how > ReceiveOp::kReduce) return in_round(i, t, "combines in no known way");
    }
  }
  return {};
}

/// For one chunk: the ranks whose terms are in the value that each rank holds, as bit sets.
class Terms {
 public:
  explicit Terms(const Schedule& s)
      : schedule_(s),
        words_((static_cast<std::size_t>(s.ranks) + 63) / 64),
        held_(static_cast<std::size_t>(s.ranks) * words_),
        use_(static_cast<std::size_t>(s.ranks)),
        order_(s.ranks),
        replicas_(s.goal.kind == GoalKind::kAllReduce) {}

  Status run(int chunk, std::span<const Move> moves) {
    start(chunk);
    for (std::size_t begin = 0; begin < moves.size();) {
      std::size_t end = begin;
      while (end < moves.size() && moves[end].round == moves[begin].round) ++end;
      const auto round = moves.subspan(begin, end - begin);
      STORMO_RETURN_IF_ERROR(check_hazards(round));
      stage_exchanges(round);
      for (const Move& move : round) STORMO_RETURN_IF_ERROR(apply(move));
      if (replicas_) order_.play(round);
      begin = end;
    }
    STORMO_RETURN_IF_ERROR(check_goal(chunk));
    return replicas_ ? check_order(chunk) : Status();
  }

 private:
  static constexpr std::size_t kNotStaged = SIZE_MAX;

  /// What a rank does with the chunk in the round under way.
  struct Use {
    int round = -1;
    bool reads = false;
    bool copied = false;
    bool reduced = false;
    std::size_t staged = kNotStaged;  // where staged_ keeps what it held before the round
  };

  std::span<std::uint64_t> of(Rank r) {
    return std::span(held_).subspan(static_cast<std::size_t>(r) * words_, words_);
  }

  /// What rank r held before the round under way.
  std::span<const std::uint64_t> sent_by(Rank r) {
    const std::size_t staged = use_[static_cast<std::size_t>(r)].staged;
    return staged == kNotStaged ? of(r) : std::span(staged_).subspan(staged, words_);
  }

  void add_own_term(Rank r) {
    const auto bit = static_cast<std::size_t>(r);
    of(r)[bit / 64] |= std::uint64_t{1} << (bit % 64);
  }

  /// How many terms of ranks below `end` are in what rank r holds.
  int count_terms(Rank r, Rank end) {
    int count = 0;
    const auto words = of(r);
    const auto full = static_cast<std::size_t>(end) / 64;
    for (std::size_t i = 0; i < full; ++i) count += std::popcount(words[i]);
    if (end % 64 == 0) return count;
    return count + std::popcount(words[full] & ((std::uint64_t{1} << (end % 64)) - 1));
  }

  void start(int chunk) {
    std::ranges::fill(held_, 0);
    std::ranges::fill(use_, Use{});
    const auto source = plan::only_source(schedule_, chunk);
    for (Rank r = 0; r < schedule_.ranks; ++r) {
      if (!source || *source == r) add_own_term(r);
    }
    if (replicas_) order_.start();
  }

  Use& use_of(Rank r, int round) {
    Use& use = use_[static_cast<std::size_t>(r)];
    if (use.round != round) use = Use{.round = round};
    return use;
  }

  Status check_hazards(std::span<const Move> moves) {
    for (const Move& move : moves) use_of(move.transfer.from, move.round).reads = true;
    for (const Move& move : moves) {
      const Transfer& t = move.transfer;
      const auto round = static_cast<std::size_t>(move.round);
      Use& use = use_of(t.to, move.round);
      if (use.reads && t.how == ReceiveOp::kCopy) {
        return in_round(round, t, "would overwrite what the receiver sends in this round");
      }
      if (use.copied || (use.reduced && t.how == ReceiveOp::kCopy)) {
        return in_round(round, t, "the receiver gets this chunk twice, once by copy");
      }
      (t.how == ReceiveOp::kCopy ? use.copied : use.reduced) = true;
    }
    return {};
  }

  /// A rank that sends what it also reduces into sends what it held before.
  void stage_exchanges(std::span<const Move> moves) {
    staged_.clear();
    for (const Move& move : moves) {
      Use& use = use_of(move.transfer.to, move.round);
      if (!use.reads || use.staged != kNotStaged) continue;
      use.staged = staged_.size();
      std::ranges::copy(of(move.transfer.to), std::back_inserter(staged_));
    }
  }

  Status apply(const Move& move) {
    const Transfer& t = move.transfer;
    const auto round = static_cast<std::size_t>(move.round);
    const auto source = sent_by(t.from);
    const auto target = of(t.to);
    const auto is_set = [](std::uint64_t w) { return w != 0; };
    if (std::ranges::none_of(source, is_set)) {
      return in_round(round, t, "the sender does not have this chunk");
    }
    if (t.how == ReceiveOp::kCopy) {
      std::ranges::copy(source, target.begin());
      return {};
    }
    if (std::ranges::none_of(target, is_set)) {
      return in_round(round, t, "the receiver has no value to reduce into");
    }
    for (std::size_t i = 0; i < words_; ++i) {
      if (const std::uint64_t both = source[i] & target[i]; both != 0) {
        const auto rank = i * 64 + static_cast<std::size_t>(std::countr_zero(both));
        return in_round(round, t,
                        "the term of rank " + std::to_string(rank) + " would be counted twice");
      }
      target[i] |= source[i];
    }
    return {};
  }

  /// The ranks that must hold the outcome hold the terms that it is made of, and no others' (a set
  /// cannot hold others' terms where only one rank started with a value).
  Status check_goal(int chunk) {
    const auto target = plan::only_target(schedule_, chunk);
    const Rank first = target.value_or(0);
    const Rank last = target.value_or(schedule_.ranks - 1);
    const bool reduces = plan::reduces(schedule_.goal.kind);
    for (Rank r = first; r <= last; ++r) {
      const plan::Terms wanted = plan::terms_at(schedule_, r);
      const int terms = wanted.end - wanted.first;
      const int held = count_terms(r, schedule_.ranks);
      const int strange = held - count_terms(r, wanted.end) + count_terms(r, wanted.first);
      if (strange == 0 && held == (reduces ? terms : 1)) continue;
      const std::string who =
          "at the end rank " + std::to_string(r) + ", chunk " + std::to_string(chunk) + ": ";
      if (!reduces) return bad(who + "never received");
      if (strange > 0) {
        return bad(who + "holds terms of ranks other than " + std::to_string(wanted.first) +
                   " to " + std::to_string(wanted.end - 1));
      }
      return bad(who + "holds the terms of " + std::to_string(held) + " of " +
                 std::to_string(terms) + " ranks");
    }
    return {};
  }

  /// Sums of floating-point numbers depend on the order: replicas must have been built alike.
  Status check_order(int chunk) const {
    const Rank other = order_.first_that_differs();
    if (other < 0) return {};
    return bad("at the end ranks 0 and " + std::to_string(other) + " have built chunk " +
               std::to_string(chunk) +
               " in different orders: the replicas would differ in their last bits");
  }

  const Schedule& schedule_;
  std::size_t words_;
  std::vector<std::uint64_t> held_;
  std::vector<std::uint64_t> staged_;
  std::vector<Use> use_;
  ReductionOrder order_;
  bool replicas_;
};

}  // namespace

Status verify(const Schedule& s) {
  STORMO_RETURN_IF_ERROR(check_ranges(s));
  const MovesByChunk moves(s);
  Terms terms(s);
  for (int chunk = 0; chunk < s.chunks; ++chunk) {
    STORMO_RETURN_IF_ERROR(terms.run(chunk, moves.of(chunk)));
  }
  return {};
}

}  // namespace stormo::analysis
