#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>

namespace stormo::plan {

/// A part of what one rank's values become: the values of rank `from`, times a weight.
struct MixingTerm {
  Rank from = 0;
  double weight = 0;
  bool operator==(const MixingTerm&) const = default;
};

/// The terms of each rank, by rank: the rows of the matrix W of weights, without its zeros. Those
/// of one rank are in ascending order of `from`.
using MixingMatrix = std::vector<std::vector<MixingTerm>>;

/// With whom ranks mix their values: x_i becomes the sum of W_ij x_j. Step n uses round n mod
/// rounds. In each round rows and columns of W add up to 1, so the mean over all ranks stays as it
/// is; and over all rounds there is a way from each rank to each other.
struct Mixing {
  std::vector<MixingMatrix> rounds;  ///< at least one

  int ranks() const { return static_cast<int>(rounds.front().size()); }
  const MixingMatrix& at(std::int64_t step) const {
    return rounds[static_cast<std::size_t>(step % static_cast<std::int64_t>(rounds.size()))];
  }
};

/// The ranks from which, and to which, `rank` sends in one round; ascending.
std::vector<Rank> senders_to(const MixingMatrix& w, Rank rank);
std::vector<Rank> receivers_of(const MixingMatrix& w, Rank rank);

/// One topology: whom ranks meet.
struct MixingTopology {
  std::string_view name;  ///< in recipes and plans
  /// To how many others a rank sends in a step, and which, as docs/decentralised.md says.
  std::string_view neighbours;
  /// Of 2 or more ranks. kInvalidArgument for numbers of ranks that it does not know.
  Result<Mixing> (*make)(int ranks);
};
std::span<const MixingTopology> mixing_topologies();

/// By its name, or as the text of one that somebody has made: edges without direction,
/// "edges:0-1,1-2", with Metropolis weights; or the rows of W, "weights:0.5,0.5;1/2,1/2". Ranks are
/// at least 1; one rank mixes with nobody. kInvalidArgument says all that is wrong. O(ranks^2) at
/// most.
Result<Mixing> mixing_of(std::string_view topology, int ranks);

/// The same text from that of a file: a line "edges" or "weights", and lines of two ranks each, or
/// of a row each; blanks between them, comments behind '#'. kInvalidArgument names the line.
Result<std::string> topology_of_text(std::string_view text);
/// The longest text of a topology.
inline constexpr std::size_t kMaxTopologyBytes = std::size_t{1} << 20;

// --- for those who make one ----------------------------------------------------------------------

/// Each rank has the values of those that an edge joins it with, and its own. Metropolis weights,
/// 1 / (1 + the larger of the two degrees), are symmetric whatever the graph is.
Mixing metropolis(int ranks, std::span<const std::pair<Rank, Rank>> edges);
/// In each round every rank receives from those that are so many ranks before it, and all weights
/// are equal.
Mixing circulant(int ranks, std::span<const std::vector<int>> offsets_of_rounds);

/// What a matrix of `ranks` rows, which somebody has written, lacks of what Mixing promises; all of
/// it.
Status check(const Mixing& mixing);

/// By which factor the distance of the ranks from their mean becomes shorter in a step, in the long
/// run: the second largest of the absolute eigenvalues of W, of several rounds the geometric mean
/// of their product's. 0: all ranks have the mean after so many steps as there are rounds or ranks.
/// O(ranks^3).
double contraction(const Mixing& mixing);

}  // namespace stormo::plan
