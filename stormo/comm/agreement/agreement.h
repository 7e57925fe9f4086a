#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::comm {

/// The ranks that differ when all ranks must be equal.
struct Verdict {
  std::vector<Rank> differing;  ///< from the value of the majority; empty: all equal
  bool majority = true;         ///< false: there is none, and `differing` differ from rank 0
};

/// `hashes` has one value per rank.
Verdict majority_vote(std::span<const std::int64_t> hashes);

/// The value of one rank for something that must be equal on all ranks.
struct Fact {
  std::string field;  ///< "optimizer.lr"
  std::string value;
};

/// The facts of one rank.
struct RankFacts {
  Rank rank = 0;
  std::string host{};
  std::vector<Fact> facts{};  ///< each field once
  Status problem{};           ///< error that prevents this rank from training; OK if none
};

/// OK when no rank has a problem and all facts are equal. Else kRefused with the problems, or with
/// a table: rank, host, field, its value and the value of `reference`. `reference_name` is the
/// heading of the last column ("rank 0 has").
Status compare_facts(const RankFacts& reference, const std::string& reference_name,
                     std::span<const RankFacts> others);

/// A collective. OK on all ranks when they have the same facts and no problem. Else kRefused on all
/// ranks with the same text; the group still works. In a group of one rank, `problem` itself. Costs
/// 8 bytes per rank if there is no difference. The value of the majority counts as right, or that
/// of rank 0 if there is no majority.
Status check_agreement(Communicator& world, std::vector<Fact> facts, const Status& problem = {});

}  // namespace stormo::comm
