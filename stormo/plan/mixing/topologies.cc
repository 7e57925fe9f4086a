// The topologies that have a name: a function and a row for each.
//
// What they trade: a rank that sends to d others sends d times its parameters in a step, and the
// ranks come together by the factor contraction(). A ring has the fewest messages and the slowest
// way around; exponential graphs need log2(n) messages, or as many steps of one each. Papers: X.
// Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NeurIPS 2017
// (ring); M. Assran et al., "Stochastic gradient push for distributed deep learning", ICML 2019,
// and B. Ying et al., "Exponential graph is provably efficient for decentralized deep training",
// NeurIPS 2021 (exponential graphs, and those of one peer); L. Xiao and S. Boyd, "Fast linear
// iterations for distributed averaging", Systems & Control Letters 2004 (Metropolis weights).
#include <array>
#include <string>

#include <stormo/plan/mixing/mixing.h>

namespace stormo::plan {
namespace {

using Edges = std::vector<std::pair<Rank, Rank>>;

Result<Mixing> ring(int ranks) {
  Edges edges;
  for (Rank r = 0; r < ranks; ++r) edges.emplace_back(r, (r + 1) % ranks);
  return metropolis(ranks, edges);
}

// The rows and columns of the grid whose sides differ least, each of which is a ring.
Result<Mixing> torus(int ranks) {
  int rows = 1;
  for (int n = 2; n * n <= ranks; ++n) rows = ranks % n == 0 ? n : rows;
  if (rows == 1) {
    return invalid_argument(std::to_string(ranks) +
                            " ranks are no grid of 2 rows and columns or more; use 'ring', or "
                            "start another number of ranks");
  }
  const int columns = ranks / rows;
  Edges edges;
  for (Rank r = 0; r < ranks; ++r) {
    const int row = r / columns, column = r % columns;
    edges.emplace_back(r, row * columns + (column + 1) % columns);
    edges.emplace_back(r, (row + 1) % rows * columns + column);
  }
  return metropolis(ranks, edges);
}

Result<Mixing> hypercube(int ranks) {
  if ((ranks & (ranks - 1)) != 0) {
    return invalid_argument(std::to_string(ranks) +
                            " ranks are no power of two; use 'exponential', or start 2, 4, 8, ...");
  }
  Edges edges;
  for (Rank r = 0; r < ranks; ++r) {
    for (int bit = 1; bit < ranks; bit *= 2) {
      if ((r & bit) == 0) edges.emplace_back(r, r + bit);
    }
  }
  return metropolis(ranks, edges);
}

Result<Mixing> exponential(int ranks) {
  std::vector<int> offsets;
  for (std::int64_t n = 1; n < ranks; n *= 2) offsets.push_back(static_cast<int>(n));
  return circulant(ranks, std::array{offsets});
}

// With a power of two, all ranks have the mean after as many steps as there are rounds.
Result<Mixing> one_peer_exponential(int ranks) {
  std::vector<std::vector<int>> rounds;
  for (std::int64_t n = 1; n < ranks; n *= 2) rounds.push_back({static_cast<int>(n)});
  return circulant(ranks, rounds);
}

Result<Mixing> complete(int ranks) {
  constexpr int kMost = 1024;
  if (ranks > kMost) {
    return invalid_argument("each of " + std::to_string(ranks) +
                            " ranks would send to all others; use 'exponential', or "
                            "strategy.kind=parameter_averaging");
  }
  std::vector<int> offsets;
  for (int n = 1; n < ranks; ++n) offsets.push_back(n);
  return circulant(ranks, std::array{offsets});
}

constexpr std::array<MixingTopology, 6> kRows = {{
    {"ring", "2: the ones before and behind it", ring},
    {"torus", "4, or 3 of two rows: those beside it on a grid", torus},
    {"hypercube", "log2 N: those whose number differs in one bit; N a power of two", hypercube},
    {"exponential", "log2 N, rounded up: 1, 2, 4, ... ranks further", exponential},
    {"one_peer_exponential", "1: in turn 1, 2, 4, ... ranks further", one_peer_exponential},
    {"complete", "N - 1: all", complete},
}};

}  // namespace

std::span<const MixingTopology> mixing_topologies() { return kRows; }

}  // namespace stormo::plan
