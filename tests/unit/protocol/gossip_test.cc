// Gossip at any time, in virtual time: messages are lost, late, doubled and out of order, and ranks
// crash. Nothing of what is averaged is lost without being counted, and whoever waits gets its
// answer. Each fault that is built in is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/protocol/gossip/pair_exchange.h>
#include <stormo/protocol/gossip/pairs.h>
#include <stormo/protocol/gossip/push_sum.h>

#include "tests/sanitized.h"

namespace stormo::protocol {
namespace {

constexpr std::uint64_t kSeeds = kSanitized ? 500 : 10'000;
constexpr int kEvents = 200;
constexpr auto kOne = static_cast<std::int64_t>(PushSum::kOne);

/// What somebody could get wrong.
enum class Fault {
  kNone,
  kSendsShares,  ///< what is new, in place of what has gone over the link in all
  kCountsTwice,  ///< a push that comes again is new
  kForgetsHalf,  ///< who asks gives up when an answer is late
};

/// Ranks on a graph of links of one direction, each to the next one and to others by chance.
class PushWorld {
 public:
  PushWorld(std::uint64_t seed, Fault fault) : rng_(seed, "push_sum"), fault_(fault) {
    const int n = 3 + static_cast<int>(rng_.below(4));
    for (int r = 0; r < n; ++r) {
      ranks_.emplace_back(n, std::sin(1.0 + r));
      receivers_.push_back({(r + 1) % n});
      for (int to = 0; to < n; ++to) {
        if (to != r && to != (r + 1) % n && rng_.below(3) == 0) receivers_[at(r)].push_back(to);
      }
    }
    alive_.assign(ranks_.size(), true);
  }

  void run() {
    for (int i = 0; i < kEvents && !testing::Test::HasFailure(); ++i) {
      const std::uint64_t event = rng_.below(100);
      const int r = static_cast<int>(rng_.below(ranks_.size()));
      if (event < 45) {
        if (alive_[at(r)]) push(r);
      } else if (event < 95) {
        deliver(static_cast<std::size_t>(rng_.below(std::max<std::size_t>(1, under_way_.size()))));
      } else if (event < 96 && std::ranges::count(alive_, true) > 2) {
        crash(r);
      } else if (!untold_.empty()) {
        tell();
      }
      adds_up();
    }
  }
  /// Nothing fails any more: all are told of all crashes, and every link has a last push.
  void come_to_rest() {
    while (!untold_.empty()) tell();
    under_way_.clear();
    for (int r = 0; r < size(); ++r) {
      if (alive_[at(r)]) push(r);
    }
    while (!under_way_.empty()) deliver_now(0);
    adds_up();
  }
  /// After come_to_rest(): all weights that are left, and those that were written off.
  bool is_complete() const {
    std::int64_t weights = 0;
    for (int r = 0; r < size(); ++r) {
      if (alive_[at(r)]) weights += static_cast<std::int64_t>(ranks_[at(r)].weight());
    }
    return weights + written_off() == size() * kOne;
  }
  /// How far the farthest rank is from the mean of what is left, after many more pushes.
  double distance_at_the_end() {
    // a lost rank may have been the only way: those that are left get links to each other
    for (int round = 0; round < 400; ++round) {
      for (int r = 0; r < size(); ++r) {
        if (!alive_[at(r)]) continue;
        receivers_[at(r)] = {next_alive(r)};
        push(r);
      }
      while (!under_way_.empty()) deliver_now(0);
    }
    double value = 0, weight = 0, most = 0;
    for (int r = 0; r < size(); ++r) {
      if (!alive_[at(r)]) continue;
      value += ranks_[at(r)].value();
      weight += static_cast<double>(ranks_[at(r)].weight()) / PushSum::kOne;
    }
    for (int r = 0; r < size(); ++r) {
      if (alive_[at(r)]) most = std::max(most, std::abs(ranks_[at(r)].mean() - value / weight));
    }
    return most;
  }
  int crashes() const { return static_cast<int>(std::ranges::count(alive_, false)); }
  int lost() const { return lost_; }

 private:
  struct Message {
    int from, to;
    PushSum::Push push;
    PushSum::Push before;  // what the link had then
  };
  static std::size_t at(int r) { return static_cast<std::size_t>(r); }
  int size() const { return static_cast<int>(ranks_.size()); }
  int next_alive(int r) const {
    do r = (r + 1) % size();
    while (!alive_[at(r)]);
    return r;
  }

  void push(int r) {
    for (const auto& [to, push] : ranks_[at(r)].push(receivers_[at(r)])) {
      PushSum::Push& last = last_[{r, to}];
      under_way_.push_back({r, to, push, last});
      last = push;
    }
  }
  /// Or loses it, or brings it and keeps it.
  void deliver(std::size_t i) {
    if (i >= under_way_.size()) return;
    const std::uint64_t chance = rng_.below(10);
    if (chance < 3) {
      ++lost_;
      under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (chance < 5) {
      bring(under_way_[i]);
    } else {
      deliver_now(i);
    }
  }
  void deliver_now(std::size_t i) {
    const Message m = under_way_[i];
    under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(i));
    bring(m);
  }
  void bring(const Message& m) {
    if (!alive_[at(m.to)]) return;
    PushSum::Push push = m.push;
    if (fault_ != Fault::kNone) {  // what is new is added to what was counted
      const bool is_old = m.push.number <= newest_[{m.from, m.to}];
      if (fault_ == Fault::kSendsShares && is_old) return;
      newest_[{m.from, m.to}] = std::max(newest_[{m.from, m.to}], m.push.number);
      PushSum::Push& counted = counted_[{m.from, m.to}];
      ++counted.number;
      const PushSum::Push& before =
          fault_ == Fault::kSendsShares || is_old ? m.before : taken_[{m.from, m.to}];
      counted.weight += m.push.weight - before.weight;
      counted.value += m.push.value - before.value;
      if (!is_old) taken_[{m.from, m.to}] = m.push;
      push = counted;
    }
    ranks_[at(m.to)].receive(m.from, push);
  }
  void crash(int r) {
    if (!alive_[at(r)]) return;
    alive_[at(r)] = false;
    for (int other = 0; other < size(); ++other) {
      if (other != r) untold_.emplace_back(other, r);
    }
  }
  void tell() {
    const auto i = static_cast<std::ptrdiff_t>(rng_.below(untold_.size()));
    const auto [who, lost] = untold_[static_cast<std::size_t>(i)];
    untold_.erase(untold_.begin() + i);
    ranks_[at(who)].lose(lost);
  }

  /// As those that are left know it.
  std::int64_t written_off() const {
    std::int64_t out = 0;
    for (int d = 0; d < size(); ++d) {
      if (alive_[at(d)]) continue;
      out += kOne;
      for (int r = 0; r < size(); ++r) {
        if (alive_[at(r)]) out += ranks_[at(r)].balance(d);
      }
    }
    return out;
  }
  /// What the lost ranks really had, and what is on its way to and from them.
  std::int64_t really_lost() const {
    std::int64_t out = 0;
    for (int d = 0; d < size(); ++d) {
      if (alive_[at(d)]) continue;
      out += static_cast<std::int64_t>(ranks_[at(d)].weight());
      for (int r = 0; r < size(); ++r) {
        const bool once = alive_[at(r)] || r < d;
        if (r != d && once) out += ranks_[at(d)].balance(r) + ranks_[at(r)].balance(d);
      }
    }
    return out;
  }
  void adds_up() const {
    std::int64_t sum = written_off();
    for (int r = 0; r < size(); ++r) {
      if (!alive_[at(r)]) continue;
      EXPECT_GT(ranks_[at(r)].weight(), 0u);
      sum += static_cast<std::int64_t>(ranks_[at(r)].weight());
      for (int other = 0; other < r; ++other) {
        if (!alive_[at(other)]) continue;
        const std::int64_t on_its_way = ranks_[at(r)].balance(other) + ranks_[at(other)].balance(r);
        EXPECT_TRUE(on_its_way >= 0 || fault_ != Fault::kNone);
        sum += on_its_way;
      }
    }
    EXPECT_EQ(sum, size() * kOne) << "alive, on its way, written off";
    EXPECT_EQ(written_off(), really_lost());
  }

  Rng rng_;
  Fault fault_;
  std::vector<PushSum> ranks_;
  std::vector<std::vector<int>> receivers_;
  std::vector<bool> alive_;
  std::vector<std::pair<int, int>> untold_;  // who, of whom
  std::vector<Message> under_way_;
  std::map<std::pair<int, int>, PushSum::Push> last_, counted_, taken_;  // by link
  std::map<std::pair<int, int>, std::uint64_t> newest_;
  int lost_ = 0;
};

TEST(PushSumModel, WeightsAddUpToNExactlyUnderLossAndCrash) {
  int crashes = 0, lost = 0;
  for (std::uint64_t seed = 0; seed < kSeeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    PushWorld world(seed, Fault::kNone);
    world.run();
    world.come_to_rest();
    EXPECT_TRUE(world.is_complete());
    crashes += world.crashes();
    lost += world.lost();
  }
  EXPECT_GT(crashes, static_cast<int>(kSeeds) / 2) << "all of it happens";
  EXPECT_GT(lost, static_cast<int>(kSeeds) * 5);
}

TEST(PushSumModel, RanksThatAreLeftComeToTheMeanOfWhatIsLeftTo1e10) {
  for (std::uint64_t seed = 0; seed < kSeeds / 50 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    PushWorld world(seed, Fault::kNone);
    world.run();
    world.come_to_rest();
    EXPECT_LT(world.distance_at_the_end(), 1e-10);
  }
}

TEST(PushSumModel, FindsMassThatIsLostOrCountedTwice) {
  for (const Fault fault : {Fault::kSendsShares, Fault::kCountsTwice}) {
    int found = 0;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      PushWorld world(seed, fault);
      world.run();
      world.come_to_rest();
      found += world.is_complete() ? 0 : 1;
    }
    EXPECT_GT(found, 50) << static_cast<int>(fault);
  }
}

TEST(PushSum, WithoutFaultsIsTheMeanOfAllOnADirectedGraph) {
  constexpr int kRanks = 5;
  std::vector<PushSum> ranks;
  for (int r = 0; r < kRanks; ++r) ranks.emplace_back(kRanks, r * r);
  for (int step = 0; step < 300; ++step) {
    std::vector<std::vector<std::pair<int, PushSum::Push>>> sent;
    for (int r = 0; r < kRanks; ++r) {
      // rank 0 sends to two others, which is not doubly stochastic
      const std::vector<int> to =
          r == 0 ? std::vector<int>{1, 3} : std::vector<int>{(r + 1) % kRanks};
      sent.push_back(ranks[static_cast<std::size_t>(r)].push(to));
    }
    for (int r = 0; r < kRanks; ++r) {
      for (const auto& [to, push] : sent[static_cast<std::size_t>(r)]) {
        ranks[static_cast<std::size_t>(to)].receive(r, push);
      }
    }
  }
  double weights = 0;
  for (const PushSum& rank : ranks) {
    EXPECT_NEAR(rank.mean(), 6, 1e-10);
    weights += static_cast<double>(rank.weight());
  }
  EXPECT_EQ(weights, kRanks * static_cast<double>(PushSum::kOne));
}

/// Ranks that ask, and as many that answer.
class PairWorld {
 public:
  PairWorld(std::uint64_t seed, Fault fault) : rng_(seed, "pairs"), fault_(fault) {
    const int n = 1 + static_cast<int>(rng_.below(3));
    for (int r = 0; r < n; ++r) {
      asking_.emplace_back(n, std::sin(1.0 + r));
      answering_.emplace_back(n, std::cos(3.0 + r));
      sum_ += asking_.back().value() + answering_.back().value();
    }
  }
  void run(int events) {
    for (int i = 0; i < events; ++i) {
      const std::uint64_t event = rng_.below(100);
      const std::size_t r = rng_.below(asking_.size());
      if (event < 25) {
        const std::size_t other = rng_.below(answering_.size());
        if (!asking_[r].question() && !given_up_.contains({r, other})) {
          asking_[r].begin(static_cast<int>(other));
          ask(r);
        }
      } else if (event < 40) {
        ask(r);  // again, where it awaits an answer
        if (fault_ == Fault::kForgetsHalf && rng_.below(8) == 0) give_up(r);
      } else if (event < 55) {
        const double change = rng_.uniform() - 0.5;  // a gradient
        event % 2 == 0 ? asking_[r].add(change) : answering_[r].add(change);
        sum_ += change;
      } else {
        deliver(rng_.below(10));
      }
    }
  }
  /// Nothing is lost any more: each question that is open is asked once more.
  void come_to_rest() {
    under_way_.clear();
    for (std::size_t r = 0; r < asking_.size(); ++r) ask(r);
    while (!under_way_.empty()) deliver(9);
  }
  bool waits() const {
    return std::ranges::any_of(asking_, [](const auto& a) { return a.question().has_value(); });
  }
  double missing() const {
    double sum = -sum_;
    for (const AskingRank& a : asking_) sum += a.value();
    for (const AnsweringRank& a : answering_) sum += a.value();
    return std::abs(sum);
  }
  /// How far values are apart after many averages without gradients.
  double spread() {
    for (int i = 0; i < 2000; ++i) {
      const std::size_t r = rng_.below(asking_.size());
      asking_[r].begin(static_cast<int>(rng_.below(answering_.size())));
      ask(r);
      while (!under_way_.empty()) deliver(9);
    }
    std::vector<double> all;
    for (const AskingRank& a : asking_) all.push_back(a.value());
    for (const AnsweringRank& a : answering_) all.push_back(a.value());
    return std::ranges::max(all) - std::ranges::min(all);
  }
  int averages() const { return averages_; }

 private:
  struct Message {
    std::size_t asking, answering;
    std::optional<PairQuestion> question;  // else an answer
    PairAnswer answer;
  };
  void ask(std::size_t r) {
    const auto& open = asking_[r].question();
    if (!open) return;
    under_way_.push_back({r, static_cast<std::size_t>(open->first), open->second, {}});
  }
  void give_up(std::size_t r) {
    const auto& open = asking_[r].question();
    if (!open) return;
    const auto peer = open->first;
    given_up_[{r, static_cast<std::size_t>(peer)}] = true;
    asking_[r].lose(peer);
  }
  /// `chance` of 10: below 3 it is lost, below 5 it comes again.
  void deliver(std::uint64_t chance) {
    if (under_way_.empty()) return;
    const auto i = static_cast<std::ptrdiff_t>(rng_.below(under_way_.size()));
    const Message m = under_way_[static_cast<std::size_t>(i)];
    if (chance < 3 || chance >= 5) under_way_.erase(under_way_.begin() + i);
    if (chance < 3) return;
    if (m.question) {
      const auto answer = answering_[m.answering].receive(static_cast<int>(m.asking), *m.question);
      if (answer) under_way_.push_back({m.asking, m.answering, {}, *answer});
      return;
    }
    const bool waited = asking_[m.asking].question().has_value();
    asking_[m.asking].receive(static_cast<int>(m.answering), m.answer);
    averages_ += waited && !asking_[m.asking].question() ? 1 : 0;
  }

  Rng rng_;
  Fault fault_;
  std::vector<AskingRank> asking_;
  std::vector<AnsweringRank> answering_;
  std::vector<Message> under_way_;
  std::map<std::pair<std::size_t, std::size_t>, bool> given_up_;
  double sum_ = 0;
  int averages_ = 0;
};

TEST(PairModel, TheSumIsKeptAndNobodyWaitsForEver) {
  int averages = 0;
  for (std::uint64_t seed = 0; seed < kSeeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    PairWorld world(seed, Fault::kNone);
    world.run(kEvents);
    world.come_to_rest();
    EXPECT_FALSE(world.waits());
    EXPECT_LT(world.missing(), 1e-12);
    averages += world.averages();
  }
  EXPECT_GT(averages, 100'000 * static_cast<int>(kSeeds) / 10'000);
}

TEST(PairModel, ValuesComeTogether) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    PairWorld world(seed, Fault::kNone);
    world.run(kEvents);
    world.come_to_rest();
    EXPECT_LT(world.spread(), 1e-12);
    EXPECT_LT(world.missing(), 1e-12);
  }
}

TEST(PairModel, FindsHalfAnAverageThatIsLost) {
  int found = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    PairWorld world(seed, Fault::kForgetsHalf);
    world.run(kEvents);
    world.come_to_rest();
    found += world.missing() > 1e-9 ? 1 : 0;
  }
  EXPECT_GT(found, 20);
}

TEST(PairExchange, OfALostRankNothingIsAwaited) {
  AskingRank asks(2, 4);
  AnsweringRank answers(2, 2);
  asks.begin(1);
  const PairQuestion first = asks.question()->second;
  const auto answer = answers.receive(0, first);
  EXPECT_EQ(answers.value(), 3);
  EXPECT_EQ(answers.receive(0, first)->moved, answer->moved) << "once";
  EXPECT_EQ(answers.value(), 3);
  asks.add(10);  // a gradient, while it waits
  asks.receive(1, *answer);
  EXPECT_EQ(asks.value(), 13);
  asks.receive(1, *answer);
  EXPECT_EQ(asks.value(), 13);
  asks.begin(1);
  asks.lose(1);
  EXPECT_FALSE(asks.question());
  EXPECT_EQ(asks.moved(1), 1);
}

TEST(Pairs, WhoAsksAsksAllThatAnswerAlike) {
  constexpr int kSteps = 20'000;
  for (const int ranks : {2, 3, 4, 7, 16}) {
    EXPECT_EQ(asking_ranks(ranks), ranks - ranks / 2);
    const double each = kSteps / static_cast<double>(ranks / 2);
    std::map<std::pair<int, int>, double> together;  // of the first two that ask
    for (int rank = 0; rank < ranks; rank += 2) {
      std::map<int, double> asked;
      for (int step = 1; step <= kSteps; ++step) {
        const int peer = rank_to_ask(7, ranks, rank, step);
        EXPECT_TRUE(peer < ranks && !asks(peer)) << peer;
        EXPECT_EQ(rank_to_ask(7, ranks, rank, step), peer) << "whenever it is asked";
        ++asked[peer];
        if (rank == 2) ++together[{rank_to_ask(7, ranks, 0, step), peer}];
      }
      EXPECT_EQ(std::ssize(asked), ranks / 2);
      for (const auto& [peer, times] : asked) EXPECT_NEAR(times, each, 5 * std::sqrt(each));
    }
    // two ranks choose independently of each other
    for (const auto& [both, times] : together) {
      EXPECT_NEAR(times, each / (ranks / 2), 6 * std::sqrt(each));
    }
  }
}

}  // namespace
}  // namespace stormo::protocol
