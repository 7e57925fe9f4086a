#pragma once

#include <string>
#include <vector>

#include <cli/plan/output.h>
#include <stormo/plan/schedule.h>

namespace stormo::cli {

/// What one rank sends another in one round and in one way.
struct Arrow {
  Rank from = 0;
  Rank to = 0;
  plan::ReceiveOp how = plan::ReceiveOp::kCopy;
  std::vector<int> chunks;
};

/// The transfers of a round, joined, by sender and receiver.
std::vector<Arrow> arrows_of(const plan::Round& round);

/// "+c0-3,7": reduced chunks; "=c5": a copied one.
std::string label_of(const Arrow& arrow);

/// What every rank sends in every round: ranks are columns, rounds are rows. Cells, columns and
/// rows beyond what a terminal shows are left out; `note` says so.
struct RoundsTable {
  Rows rows;
  std::string note;
};
RoundsTable rounds_table(const plan::Schedule& s);

}  // namespace stormo::cli
