// Topologies of decentralised training: what is true of each of them, and what is wrong with those
// that somebody has made.
#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/plan/mixing/mixing.h>

namespace stormo::plan {
namespace {

using testing::HasSubstr;

constexpr int kMostRanks = 33;

Mixing of(std::string_view topology, int ranks) {
  return mixing_of(topology, ranks).take_or_throw();
}

std::string said_of(std::string_view topology, int ranks) {
  return mixing_of(topology, ranks).status().message();
}

using Values = std::vector<double>;

Values mixed(const MixingMatrix& w, const Values& x) {
  Values out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (const MixingTerm& t : w[i]) out[i] += t.weight * x[static_cast<std::size_t>(t.from)];
  }
  return out;
}

double mean_of(const Values& x) {
  double sum = 0;
  for (const double v : x) sum += v;
  return sum / static_cast<double>(x.size());
}

/// The distance of the ranks from their mean.
double disagreement(const Values& x) {
  const double mean = mean_of(x);
  double sum = 0;
  for (const double v : x) sum += (v - mean) * (v - mean);
  return std::sqrt(sum);
}

/// Different on each rank, and in no direction that a topology prefers.
Values some_values(int ranks) {
  Values out;
  for (int r = 0; r < ranks; ++r) out.push_back(std::sin(1.0 + 1.7 * r) + 0.01 * r * r);
  return out;
}

template <class Function>
void each_topology(const Function& f) {
  for (const MixingTopology& row : mixing_topologies()) {
    for (int n = 2; n <= kMostRanks; ++n) {
      const Result<Mixing> made = mixing_of(row.name, n);
      if (!made.ok()) continue;
      SCOPED_TRACE(std::string(row.name) + " of " + std::to_string(n));
      f(row, *made);
    }
  }
}

TEST(Mixing, EveryTopologyIsDoublyStochasticAndConnected) {
  std::map<std::string_view, int> known;
  each_topology([&](const MixingTopology& row, const Mixing& mixing) {
    ++known[row.name];
    EXPECT_TRUE(check(mixing).ok()) << check(mixing).message();
    EXPECT_LT(contraction(mixing), 1);
    for (const MixingMatrix& w : mixing.rounds) {
      for (const auto& terms : w) {
        EXPECT_TRUE(std::ranges::is_sorted(terms, std::less<>(), &MixingTerm::from));
        EXPECT_TRUE(std::ranges::all_of(terms, [](const auto& t) { return t.weight > 0; }));
      }
    }
  });
  // 2 to 33: all; not the primes and 2, 3; powers of two
  const std::map<std::string_view, int> expected = {{"ring", 32},     {"torus", 21},
                                                    {"hypercube", 5}, {"exponential", 32},
                                                    {"complete", 32}, {"one_peer_exponential", 32}};
  EXPECT_EQ(known, expected);
}

TEST(Mixing, TheMeanIsKeptTo1e12) {
  each_topology([](const MixingTopology&, const Mixing& mixing) {
    Values x = some_values(mixing.ranks());
    const double mean = mean_of(x);
    for (int step = 0; step < 1000; ++step) x = mixed(mixing.at(step), x);
    EXPECT_NEAR(mean_of(x), mean, 1e-12);
  });
}

// x W is asked of each rank alone: who sends to whom has to be the same from both sides.
TEST(Mixing, WhoReceivesIsSentTo) {
  each_topology([](const MixingTopology&, const Mixing& mixing) {
    for (const MixingMatrix& w : mixing.rounds) {
      for (Rank i = 0; i < mixing.ranks(); ++i) {
        for (const Rank from : senders_to(w, i)) {
          const std::vector<Rank> to = receivers_of(w, from);
          EXPECT_EQ(std::ranges::count(to, i), 1) << from << " to " << i;
        }
      }
    }
  });
  EXPECT_EQ(senders_to(of("ring", 5).at(0), 0), (std::vector<Rank>{1, 4}));
  EXPECT_EQ(receivers_of(of("exponential", 8).at(0), 1), (std::vector<Rank>{2, 3, 5}));
  EXPECT_EQ(receivers_of(of("one_peer_exponential", 8).at(4), 7), (std::vector<Rank>{1}));
  EXPECT_EQ(senders_to(of("torus", 12).at(0), 0), (std::vector<Rank>{1, 3, 4, 8}));
  EXPECT_EQ(senders_to(of("torus", 6).at(0), 0), (std::vector<Rank>{1, 2, 3}));
  EXPECT_TRUE(senders_to(of("ring", 1).at(0), 0).empty());
}

TEST(Mixing, ARingOf8ShrinksBy0_8047AStep) {
  const Mixing ring = of("ring", 8);
  const double expected = (1 + 2 * std::cos(2 * std::numbers::pi / 8)) / 3;
  EXPECT_NEAR(expected, 0.8047, 1e-4);
  EXPECT_NEAR(contraction(ring), expected, 1e-10);
  Values x = some_values(8);
  double before = 0;
  for (int step = 0; step < 60; ++step) {
    before = disagreement(x);
    x = mixed(ring.at(step), x);
  }
  EXPECT_NEAR(disagreement(x) / before, expected, 1e-6);
}

TEST(Mixing, SecondEigenvaluesAreThoseOfTheFormulas) {
  const auto cosine = [](int n) { return std::cos(2 * std::numbers::pi / n); };
  for (int n = 3; n <= kMostRanks; ++n) {
    EXPECT_NEAR(contraction(of("ring", n)), (1 + 2 * cosine(n)) / 3, 1e-10) << n;
    EXPECT_EQ(contraction(of("complete", n)) < 1e-14, true) << n;
  }
  EXPECT_NEAR(contraction(of("torus", 20)), (3 + 2 * cosine(5)) / 5, 1e-10);
  for (const int d : {2, 3, 4, 5}) {
    const double expected = (d - 1.0) / (d + 1.0);
    EXPECT_NEAR(contraction(of("hypercube", 1 << d)), expected, 1e-10) << d;
    EXPECT_NEAR(contraction(of("exponential", 1 << d)), expected, 1e-10) << d;
  }
  // complex eigenvalues: 1, 2 and 4 further of 6 ranks
  double largest = 0;
  for (int k = 1; k < 6; ++k) {
    const double turn = 2 * std::numbers::pi * k / 6;
    const double re = 1 + std::cos(turn) + std::cos(2 * turn) + std::cos(4 * turn);
    const double im = std::sin(turn) + std::sin(2 * turn) + std::sin(4 * turn);
    largest = std::max(largest, std::hypot(re, im) / 4);
  }
  EXPECT_NEAR(contraction(of("exponential", 6)), largest, 1e-10);
}

TEST(Mixing, OnePeerExponentialOf8IsExactAfter3Rounds) {
  for (const int n : {2, 4, 8, 16, 32}) {
    const Mixing mixing = of("one_peer_exponential", n);
    const auto rounds = static_cast<int>(mixing.rounds.size());
    EXPECT_EQ(1 << rounds, n);
    Values x = some_values(n);
    for (int step = 0; step < rounds; ++step) x = mixed(mixing.at(step), x);
    EXPECT_LT(disagreement(x), 1e-12) << n;
    EXPECT_EQ(contraction(mixing), 0) << n;
  }
  // of other numbers it only comes near: 1/4 in place of 1/6
  const Mixing six = of("one_peer_exponential", 6);
  Values one(6);
  one[0] = 1;
  for (int step = 0; step < 3; ++step) one = mixed(six.at(step), one);
  EXPECT_NEAR(std::ranges::max(one) - 1.0 / 6, 1.0 / 12, 1e-12);
  EXPECT_GT(contraction(six), 0.1);
}

TEST(Mixing, MetropolisWeightsAreDoublyStochasticOnAnyGraph) {
  const Mixing star = of("edges:0-1,0-2,0-3", 4);
  EXPECT_EQ(star.at(0)[1], (std::vector<MixingTerm>{{0, 0.25}, {1, 0.75}}));
  EXPECT_EQ(star.at(0)[0], (std::vector<MixingTerm>{{0, 0.25}, {1, 0.25}, {2, 0.25}, {3, 0.25}}));
  EXPECT_TRUE(check(star).ok());
  // 1/2 of a mean of leaves stays away from the hub: 3/4
  EXPECT_NEAR(contraction(star), 0.75, 1e-10);
  EXPECT_EQ(of("edges:0-1,1-0", 2).at(0), of("ring", 2).at(0)) << "an edge has no direction";
  EXPECT_EQ(of("weights:0.5,1/2;0.5,0.5", 2).at(0), of("ring", 2).at(0));
}

TEST(Mixing, SaysWhatIsWrongWithATopology) {
  EXPECT_EQ(said_of("rign", 4),
            "topology 'rign': there is none of this name, but ring, torus, hypercube, exponential, "
            "one_peer_exponential, complete, edges:0-1,1-2 and weights:0.5,0.5;0.5,0.5, or a file "
            "of edges or weights; pairs is gossip without steps in common");
  EXPECT_EQ(said_of("rign", 1), said_of("rign", 4)) << "one rank mixes with nobody, by any name";
  EXPECT_EQ(said_of("torus", 7),
            "topology 'torus': 7 ranks are no grid of 2 rows and columns or more; use 'ring', or "
            "start another number of ranks");
  EXPECT_EQ(said_of("hypercube", 6),
            "topology 'hypercube': 6 ranks are no power of two; use 'exponential', or start 2, 4, "
            "8, ...");
  EXPECT_THAT(said_of("complete", 1025), HasSubstr("each of 1025 ranks would send to all others"));
  EXPECT_EQ(said_of("edges:0-1,2-8", 4),
            "topology 'edges': edge 2-8 names rank 8, and there are the ranks 0 to 3");
  EXPECT_EQ(said_of("edges:0-1,2-2", 4),
            "topology 'edges': edge 2-2 joins a rank with itself, which has its own values anyway");
  for (const char* no_edge : {"edges:0", "edges:0-", "edges:a-1", "edges:0--1"}) {
    EXPECT_THAT(said_of(no_edge, 4), HasSubstr("is no edge; write two ranks, as 0-1")) << no_edge;
  }
  EXPECT_EQ(said_of("edges:0-1,2-3", 5),
            "topology 'edges': there is no way between the ranks {0,1}, {2,3}, {4}: join them");
  EXPECT_EQ(said_of("weights:0.5,0.5,0;0.5,0.4,0;0,0,1", 3),
            "topology 'weights': row 1 adds up to 0.9, not 1; column 1 adds up to 0.9, not 1, so "
            "that the mean of all ranks would move; 'edges' gives weights that fit; there is no "
            "way between the ranks {0,1}, {2}: join them");
  EXPECT_THAT(said_of("weights:1.5,-0.5;-0.5,1.5", 2),
              HasSubstr("row 0 has the weight -0.5: give weights of at least 0"));
  EXPECT_EQ(said_of("weights:0,1;1,0", 2),
            "topology 'weights': no rank keeps a part of its own values, so that ranks may change "
            "places for ever: give one rank at least a weight of its own");
  EXPECT_EQ(said_of("weights:1,0;0,1", 3),
            "topology 'weights': the matrix has 2 rows, and there are 3 ranks");
  EXPECT_EQ(said_of("weights:1,0;1", 2),
            "topology 'weights': row 1 has 1 weights, and there are 2 ranks");
  EXPECT_EQ(said_of("weights:1,0;x,1", 2),
            "topology 'weights': row 1: 'x' is no weight; write 0.25 or 1/4");
}

// Each rank takes the mean of those that it hears: rows add up to 1, and the hub counts too much.
TEST(Mixing, ColumnsHaveToAddUpToOneToo) {
  EXPECT_THAT(
      said_of("weights:1/4,1/4,1/4,1/4;1/2,1/2,0,0;1/2,0,1/2,0;1/2,0,0,1/2", 4),
      testing::StartsWith("topology 'weights': column 0 adds up to 1.75, not 1, so that the mean "
                          "of all ranks would move; 'edges' gives weights that fit; column 1 adds "
                          "up to 0.75"));
}

TEST(Mixing, AFileOfEdgesOrWeightsBecomesATopology) {
  const auto text_of = [](const char* text) { return topology_of_text(text).take_or_throw(); };
  const auto refused = [](const char* text) { return topology_of_text(text).status().message(); };
  EXPECT_EQ(text_of("# two hosts\nedges\n 0 1  # in the first\n\n1\t2\r\n"), "edges:0-1,1-2");
  EXPECT_EQ(text_of("weights\n1/2 1/2\n0.5 0.5"), "weights:1/2,1/2;0.5,0.5");
  EXPECT_EQ(refused("0 1\n"), "line 1: expected 'edges' or 'weights', the kind of what follows");
  EXPECT_EQ(refused("edges\n0 1\n1 2 0.5\n"),
            "line 3: expected an edge, which is two ranks, as 0 1");
  for (const char* nothing : {"", "# nothing\n", "edges\n"}) {
    EXPECT_EQ(refused(nothing),
              "it has no edges or weights; begin with a line 'edges' or 'weights'");
  }
}

}  // namespace
}  // namespace stormo::plan
