#pragma once

#include <stormo/plan/schedule.h>

namespace stormo::schedule {

/// All-reduce on a grid of `rows` x `columns` ranks, numbered row by row. rows * columns chunks.
/// rows >= 1, columns >= 1, their product <= plan::kMaxRanks.
plan::Schedule torus_all_reduce(int rows, int columns);

}  // namespace stormo::schedule
