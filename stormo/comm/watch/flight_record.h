#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/watch/activity.h>
#include <stormo/comm/watch/stacks.h>
#include <stormo/protocol/stall.h>

namespace stormo::comm {

/// What a rank sees of the process of another one that does not answer.
struct Neighbour {
  Rank rank = 0;
  pid_t pid = 0;
  std::string seen;                  ///< describe_process()
  std::vector<ThreadState> threads;  ///< without stacks
};

/// What a rank has been doing lately, as one JSON object: docs/hangs.md has its format.
struct RankRecord {
  Rank rank = 0;
  std::string identity;
  bool whole = false;                ///< with the last operations, not only the last one
  std::vector<ThreadState> threads;  ///< when its stacks were asked for
  std::vector<Neighbour> neighbours;
};
std::string to_json(const RankRecord& record, const Activities& activities, const TickScale& scale);

/// What the judge of a stall needs of it; kCorrupt when it is none.
Result<protocol::RankReport> parse_rank_report(std::string_view json);

/// "main < run < wait", of the main thread; empty when no stack was taken.
std::string main_stack_of(std::string_view json);

/// Writes the records of all ranks as one JSON file; its folder is made if need be. Replaces an
/// earlier one only as a whole.
Status write_flight_file(const std::string& path, const protocol::Stall& stall,
                         const std::vector<std::string>& records);

}  // namespace stormo::comm
