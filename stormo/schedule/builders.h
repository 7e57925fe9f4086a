#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <stormo/base/status.h>
#include <stormo/plan/schedule.h>
#include <stormo/schedule/algorithms.h>
#include <stormo/schedule/host_leaders.h>

namespace stormo::schedule {

/// What a schedule is built for.
struct ScheduleShape {
  int ranks = 1;
  HostSizes hosts = {1};  ///< ranks on each; read by algorithms that take hosts
  Rank root = 0;
  int pieces = 1;  ///< for algorithms that send the data as a pipeline of pieces
};

/// One algorithm, as the program, the documentation and the tests list it.
struct Builder {
  std::string_view name;         ///< "ring_all_reduce"; also Schedule::name
  std::string_view description;  ///< one line
  plan::GoalKind goal;
  /// The parts of the shape that it reads, and what it needs of them; the others are ignored.
  struct Takes {
    bool hosts = false;
    bool even_hosts = false;  ///< needs as many ranks on every host
    bool root = false;
    bool pieces = false;
  } takes{};
  /// all_to_all: ranks forward blocks of other ranks; they know the sizes only if all blocks are
  /// equal.
  bool forwards = false;
  /// Reductions: every element is added up in ascending order of rank, wherever the chunks end.
  bool by_rank = false;
  /// For docs/algorithms.md; n ranks, q the largest power of two <= n, h hosts, m = n/h, p pieces,
  /// a buffer of K bytes, what the busiest rank sends.
  struct Formulas {
    std::string_view rounds, bytes;
  } formulas;
  /// Of the schedule, known before it is built so that its size can be checked first.
  struct Size {
    std::int64_t (*transfers)(const ScheduleShape& shape);
    std::int64_t (*chunks)(const ScheduleShape& shape);
  } size;
  /// Called by build() below with checked arguments.
  plan::Schedule (*make)(const ScheduleShape& shape);

  /// kInvalidArgument when an argument is out of range, the algorithm needs even hosts and these
  /// are not, or the schedule would have more than plan::kMaxTransfers transfers or
  /// plan::kMaxChunks chunks.
  Result<plan::Schedule> build(const ScheduleShape& shape) const;
  /// The same on `hosts` hosts with as equal numbers of ranks as possible (spread_over), 1 <= hosts
  /// <= ranks.
  Result<plan::Schedule> build(int ranks, int hosts = 1, Rank root = 0, int pieces = 1) const;
};

/// All algorithms, ordered by goal and name.
std::span<const Builder> builders();

/// The builder of that name; kNotFound with the nearest name otherwise.
Result<const Builder*> find_builder(std::string_view name);

}  // namespace stormo::schedule
