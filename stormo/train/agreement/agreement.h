#pragma once

#include <span>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::train {

/// Something that must be equal on all ranks, as one of them has it.
struct Fact {
  std::string field;  ///< "optimizer.lr"
  std::string value;
};

/// What one rank brings to a run.
struct RankFacts {
  Rank rank = 0;
  std::string host{};
  std::vector<Fact> facts{};  ///< each field once
  Status problem{};           ///< what stops this rank
};

/// OK when no rank has a problem and all facts are equal; else kRefused with the problems, or with
/// a table: rank, host, field, its value and the value of `reference`, which `reference_name` names
/// in the heading ("rank 0 has").
Status compare_facts(const RankFacts& reference, const std::string& reference_name,
                     std::span<const RankFacts> others);

/// OK on all ranks when they have the same facts and no problem. Else kRefused on all ranks with
/// the same text, and the group stays as it is; in a group of one the problem itself. A collective;
/// costs 8 bytes per rank while there is nothing to tell. The value of most ranks counts as right,
/// that of rank 0 where there is no majority.
Status check_agreement(comm::Communicator& world, std::vector<Fact> facts,
                       const Status& problem = {});

}  // namespace stormo::train
