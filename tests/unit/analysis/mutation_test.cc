// The verifier is tested by breaking valid schedules in every way that a mistake could. The oracle
// is a naive executor over numbers: a mutation matters when some order of execution that a round
// allows no longer yields the sums that the goal promises, or when replicas write their sums down
// differently.
#include <gtest/gtest.h>
#include <stormo/analysis/schedule/verify.h>
#include <stormo/base/rng.h>
#include <stormo/schedule/builders.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/sanitized.h"

namespace stormo::analysis {
namespace {

using plan::GoalKind;
using plan::ReceiveOp;
using plan::Schedule;
using plan::Transfer;

using Memory = std::vector<std::vector<std::uint64_t>>;  // [rank][chunk]

enum class Order { kSnapshot, kListed, kReversed };

/// Whether some rank reduces into a chunk that it also sends: then all must read the state before
/// the round, as the rule says.
bool has_exchange(const plan::Round& round) {
  return std::ranges::any_of(round, [&](const Transfer& t) {
    return t.how == ReceiveOp::kReduce && std::ranges::any_of(round, [&](const Transfer& other) {
             return other.from == t.to && other.chunk == t.chunk;
           });
  });
}

void run_round(const plan::Round& round, Order order, Memory& memory) {
  if (has_exchange(round)) order = Order::kSnapshot;
  const Memory before = memory;
  const auto apply = [&](const Transfer& t) {
    const auto from = static_cast<std::size_t>(t.from), to = static_cast<std::size_t>(t.to);
    const auto chunk = static_cast<std::size_t>(t.chunk);
    const std::uint64_t value = (order == Order::kSnapshot ? before : memory)[from][chunk];
    memory[to][chunk] = t.how == ReceiveOp::kCopy ? value : memory[to][chunk] + value;
  };
  if (order == Order::kReversed) {
    std::for_each(round.rbegin(), round.rend(), apply);
  } else {
    std::ranges::for_each(round, apply);
  }
}

/// "(0+1)": the sum of what a rank has and receives, as it would be computed.
std::string sum_text(std::map<Rank, std::string> operands) {
  std::vector<std::string> texts;
  for (auto& [rank, text] : operands) texts.push_back(std::move(text));
  if (texts.size() == 2) std::ranges::sort(texts);
  std::string out = "(";
  for (const std::string& text : texts) out += (out.size() > 1 ? "+" : "") + text;
  return out + ")";
}

/// For a schedule that reaches its goal: whether all ranks write the sum of `chunk` alike.
bool replicas_agree(const Schedule& s, plan::ChunkId chunk) {
  std::vector<std::string> built;
  for (Rank r = 0; r < s.ranks; ++r) built.push_back(std::to_string(r));
  for (const plan::Round& round : s.rounds) {
    std::map<Rank, std::map<Rank, std::string>> sums;
    std::map<Rank, std::string> copies;
    for (const Transfer& t : round) {
      if (t.chunk != chunk) continue;
      const std::string& sent = built[static_cast<std::size_t>(t.from)];
      if (t.how == ReceiveOp::kReduce) {
        sums[t.to][t.from] = sent;
      } else {
        copies[t.to] = sent;
      }
    }
    for (auto& [rank, operands] : sums) {
      operands[rank] = built[static_cast<std::size_t>(rank)];
      copies[rank] = sum_text(operands);
    }
    for (auto& [rank, text] : copies) built[static_cast<std::size_t>(rank)] = text;
  }
  return std::ranges::count(built, built.front()) == s.ranks;
}

bool replicas_agree(const Schedule& s) {
  if (s.goal.kind != GoalKind::kAllReduce) return true;
  for (plan::ChunkId c = 0; c < s.chunks; ++c) {
    if (!replicas_agree(s, c)) return false;
  }
  return true;
}

bool reaches_goal(const Schedule& s, Order order) {
  Rng rng(7, "mutation.values");
  Memory memory(static_cast<std::size_t>(s.ranks));
  for (auto& chunks : memory) {
    for (int c = 0; c < s.chunks; ++c) chunks.push_back(rng.next_u64());
  }
  const Memory start = memory;
  for (const plan::Round& round : s.rounds) run_round(round, order, memory);
  for (int c = 0; c < s.chunks; ++c) {
    const auto chunk = static_cast<std::size_t>(c);
    const auto source = only_source(s, c);
    const auto target = only_target(s, c);
    for (Rank r = 0; r < s.ranks; ++r) {
      if (target && *target != r) continue;
      const plan::Terms terms = source ? plan::Terms{*source, *source + 1} : terms_at(s, r);
      std::uint64_t wanted = 0;
      for (Rank term = terms.first; term < terms.end; ++term) {
        wanted += start[static_cast<std::size_t>(term)][chunk];
      }
      if (memory[static_cast<std::size_t>(r)][chunk] != wanted) return false;
    }
  }
  return true;
}

bool reaches_goal(const Schedule& s) {
  return reaches_goal(s, Order::kSnapshot) && reaches_goal(s, Order::kListed) &&
         reaches_goal(s, Order::kReversed) && replicas_agree(s);
}

std::vector<Schedule> valid_schedules() {
  std::vector<Schedule> out;
  for (const schedule::Builder& b : schedule::builders()) {
    for (const auto& [ranks, hosts] : std::vector<std::pair<int, int>>{
             {2, 1}, {2, 2}, {3, 1}, {4, 2}, {5, 1}, {5, 2}, {6, 2}, {6, 3}}) {
      if (hosts > 1 && (!b.takes.hosts || (b.takes.even_hosts && ranks % hosts != 0))) continue;
      out.push_back(b.build(ranks, hosts, ranks / 2, 1 + ranks % 2).take_or_throw());
    }
  }
  return out;
}

std::size_t pick(Rng& rng, std::size_t size) { return static_cast<std::size_t>(rng.below(size)); }

plan::Round& random_round(Schedule& s, Rng& rng) { return s.rounds[pick(rng, s.rounds.size())]; }

Transfer& random_transfer(Schedule& s, Rng& rng) {
  plan::Round& round = random_round(s, rng);
  return round[pick(rng, round.size())];
}

/// Changes `s`; the class of mistake it stands for is its name.
struct Mutation {
  const char* name;
  void (*apply)(Schedule& s, Rng& rng);
  /// Valid schedules of ours hold nothing superfluous, so some mistakes always matter.
  bool always_matters = false;
};

const Mutation kMutations[] = {
    {"drop a transfer",
     [](Schedule& s, Rng& rng) {
       const std::size_t i = pick(rng, s.rounds.size());
       plan::Round& round = s.rounds[i];
       round.erase(round.begin() + static_cast<std::ptrdiff_t>(pick(rng, round.size())));
       if (round.empty()) s.rounds.erase(s.rounds.begin() + static_cast<std::ptrdiff_t>(i));
     },
     true},
    {"drop a round",
     [](Schedule& s, Rng& rng) {
       s.rounds.erase(s.rounds.begin() + static_cast<std::ptrdiff_t>(pick(rng, s.rounds.size())));
     },
     true},
    {"repeat a transfer in its round",
     [](Schedule& s, Rng& rng) {
       plan::Round& round = random_round(s, rng);
       round.push_back(round[pick(rng, round.size())]);
     }},
    {"repeat a transfer in another round",
     [](Schedule& s, Rng& rng) {
       const Transfer t = random_transfer(s, rng);
       random_round(s, rng).push_back(t);
     }},
    {"repeat a round",
     [](Schedule& s, Rng& rng) {
       const plan::Round round = random_round(s, rng);
       s.rounds.insert(s.rounds.begin() + static_cast<std::ptrdiff_t>(pick(rng, s.rounds.size())),
                       round);
     }},
    {"change the chunk",
     [](Schedule& s, Rng& rng) {
       random_transfer(s, rng).chunk =
           static_cast<int>(rng.below(static_cast<std::uint64_t>(s.chunks)));
     }},
    {"change the receiver",
     [](Schedule& s, Rng& rng) {
       random_transfer(s, rng).to =
           static_cast<Rank>(rng.below(static_cast<std::uint64_t>(s.ranks)));
     }},
    {"change the sender",
     [](Schedule& s, Rng& rng) {
       random_transfer(s, rng).from =
           static_cast<Rank>(rng.below(static_cast<std::uint64_t>(s.ranks)));
     }},
    {"turn a transfer around",
     [](Schedule& s, Rng& rng) {
       Transfer& t = random_transfer(s, rng);
       std::swap(t.from, t.to);
     }},
    {"change how it combines",
     [](Schedule& s, Rng& rng) {
       Transfer& t = random_transfer(s, rng);
       t.how = t.how == ReceiveOp::kCopy ? ReceiveOp::kReduce : ReceiveOp::kCopy;
     },
     true},
    {"swap two rounds",
     [](Schedule& s, Rng& rng) { std::swap(random_round(s, rng), random_round(s, rng)); }},
    {"join two rounds",
     [](Schedule& s, Rng& rng) {
       if (s.rounds.size() < 2) return;
       const std::size_t i = pick(rng, s.rounds.size() - 1);
       const plan::Round next = s.rounds[i + 1];
       s.rounds[i].insert(s.rounds[i].end(), next.begin(), next.end());
       s.rounds.erase(s.rounds.begin() + static_cast<std::ptrdiff_t>(i) + 1);
     }},
    {"aim a round at other receivers",
     [](Schedule& s, Rng& rng) {
       std::vector<Rank> to;
       for (Rank r = 0; r < s.ranks; ++r) to.push_back(r);
       for (std::size_t i = to.size(); i > 1; --i) std::swap(to[i - 1], to[pick(rng, i)]);
       for (Transfer& t : random_round(s, rng)) t.to = to[static_cast<std::size_t>(t.to)];
     }},
    {"delay a transfer by a round",
     [](Schedule& s, Rng& rng) {
       if (s.rounds.size() < 2) return;
       const std::size_t i = pick(rng, s.rounds.size() - 1);
       s.rounds[i + 1].push_back(s.rounds[i].back());
       s.rounds[i].pop_back();
       if (s.rounds[i].empty()) s.rounds.erase(s.rounds.begin() + static_cast<std::ptrdiff_t>(i));
     }},
    {"change the goal",
     [](Schedule& s, Rng& rng) {
       s.goal.kind = plan::kGoalKinds[pick(rng, plan::kGoalKinds.size())];
     }},
};

TEST(Mutation, TheOracleAcceptsTheValidSchedules) {
  for (const Schedule& s : valid_schedules()) {
    EXPECT_TRUE(reaches_goal(s)) << to_text(s);
    EXPECT_TRUE(verify(s).ok()) << to_text(s);
  }
}

TEST(Mutation, WhateverChangesTheMeaningIsRejected) {
  constexpr int kSeeds = kSanitized ? 8 : 40;
  const std::vector<Schedule> valid = valid_schedules();
  for (const Mutation& mutation : kMutations) {
    int tried = 0, mattered = 0, strict = 0, harmless = 0;
    for (const Schedule& original : valid) {
      for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        Schedule s = original;
        Rng rng(seed, mutation.name);
        mutation.apply(s, rng);
        if (s == original) continue;
        ++tried;
        const Status st = verify(s);
        if (!reaches_goal(s)) {
          ++mattered;
          EXPECT_FALSE(st.ok()) << mutation.name << ": accepted, but gives wrong sums\n"
                                << to_text(s);
        } else {
          // right sums all the same: verify may be stricter than the numbers show
          st.ok() ? ++harmless : ++strict;
          EXPECT_FALSE(mutation.always_matters) << mutation.name << "\n" << to_text(s);
        }
      }
    }
    EXPECT_GT(tried, 500 * kSeeds / 40) << mutation.name;
    EXPECT_GT(mattered, 100 * kSeeds / 40) << mutation.name;
    std::printf("%-36s tried %5d  rejected as wrong %5d  as unsafe %4d  harmless %4d\n",
                mutation.name, tried, mattered, strict, harmless);
  }
}

/// Exhaustive: both rounds of recursive doubling over 4 ranks, aimed in every possible way. Many
/// still sum all terms; among them are some whose ranks sum in different orders.
TEST(Mutation, ReplicasThatWouldDifferInTheirLastBitsAreRejected) {
  int valid = 0, differ = 0;
  std::array<Rank, 4> first{0, 1, 2, 3};
  do {
    std::array<Rank, 4> second{0, 1, 2, 3};
    do {
      Schedule s{"aimed", {GoalKind::kAllReduce}, 4, 1, {{}, {}}};
      bool to_itself = false;
      for (Rank r = 0; r < 4; ++r) {
        const auto i = static_cast<std::size_t>(r);
        s.rounds[0].push_back({r, first[i], 0, ReceiveOp::kReduce});
        s.rounds[1].push_back({r, second[i], 0, ReceiveOp::kReduce});
        to_itself = to_itself || first[i] == r || second[i] == r;
      }
      if (to_itself || !reaches_goal(s, Order::kSnapshot)) continue;
      const bool agree = replicas_agree(s);
      ++(agree ? valid : differ);
      EXPECT_EQ(verify(s).ok(), agree) << to_text(s);
    } while (std::ranges::next_permutation(second).found);
  } while (std::ranges::next_permutation(first).found);
  EXPECT_EQ(valid, 12);
  EXPECT_EQ(differ, 6);  // a ring in the first round, any of 6
}

/// Without sampling: every single transfer of every schedule is needed.
TEST(Mutation, EveryTransferIsNeeded) {
  int dropped = 0;
  for (const Schedule& original : valid_schedules()) {
    for (std::size_t i = 0; i < original.rounds.size(); ++i) {
      for (std::size_t j = 0; j < original.rounds[i].size(); ++j, ++dropped) {
        Schedule s = original;
        s.rounds[i].erase(s.rounds[i].begin() + static_cast<std::ptrdiff_t>(j));
        EXPECT_FALSE(verify(s).ok()) << to_text(s);
      }
    }
  }
  EXPECT_GT(dropped, 1000);
}

}  // namespace
}  // namespace stormo::analysis
