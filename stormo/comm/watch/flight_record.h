#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/watch/activity.h>
#include <stormo/comm/watch/stacks.h>
#include <stormo/protocol/stall.h>

namespace stormo::comm {

/// What a rank can see of the process of another rank that does not answer.
struct Neighbour {
  Rank rank = 0;
  pid_t pid = 0;
  std::string seen;                  ///< describe_process()
  std::vector<ThreadState> threads;  ///< without stacks
};

/// The recent operations of a rank. docs/hangs.md has the format of its JSON object.
struct RankRecord {
  Rank rank = 0;
  std::string identity;
  bool whole = false;                ///< with all recorded operations, not only the last one
  std::vector<ThreadState> threads;  ///< if its stacks were requested
  std::vector<Neighbour> neighbours;
};
std::string to_json(const RankRecord& record, const Activities& activities, const TickScale& scale);

/// The part of a record that the detection of stalls needs; kCorrupt when the text is not a record.
Result<protocol::RankReport> parse_rank_report(std::string_view json);

/// "main < run < wait", of the main thread; empty when no stack was taken.
std::string main_stack_of(std::string_view json);

/// Writes the records of all ranks as one JSON file; creates its folder if necessary. Replaces an
/// existing file atomically.
Status write_flight_file(const std::string& path, const protocol::Stall& stall,
                         const std::vector<std::string>& records);

}  // namespace stormo::comm
