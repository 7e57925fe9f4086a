#pragma once

#include <cstdint>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/prepare/recipe_task.h>

// Vertical sharding (docs/vertical.md): the data of a recipe of which each rank has some columns.
namespace stormo::train {

/// Whether each of `ranks` ranks reads columns of its own. One rank alone reads all.
bool reads_columns(const Recipe& recipe, int ranks);

/// What is known of the data without reading any: the shape of the samples, from the model. Who
/// starts ranks, or looks at their plan, opens none of their files.
RecipeData described_columns(const Recipe& recipe);

/// Reads this rank's columns, and the labels if it is the rank that has them. The preprocessing is
/// that of these columns. Targets of other ranks are undefined. Opens no file of other ranks.
/// Errors as of load_data(). No collective.
Result<RecipeData> load_columns(const Recipe& recipe, const plan::Part& rank);

/// What all ranks know of each other's columns: names, and mean and standard deviation. Values stay
/// where they are.
struct JoinedColumns {
  Preprocessing preprocessing;
  std::vector<std::int64_t> counts;  ///< columns of each rank
};

/// A collective, of ranks that have loaded their columns; its outcome is the same on all of them.
/// kInvalidArgument for columns that two ranks have, that none has, or that do not fit the model.
Result<JoinedColumns> join_columns(comm::Communicator& ranks, const Recipe& recipe,
                                   const Preprocessing& mine);

}  // namespace stormo::train
