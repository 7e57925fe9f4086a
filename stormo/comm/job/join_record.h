#pragma once

#include <string>
#include <string_view>

#include <stormo/base/status.h>
#include <stormo/comm/watch/rank_process.h>

namespace stormo::comm {

/// What a rank says of itself when it joins: one value in the job's Store.
struct JoinRecord {
  std::string version;
  RankProcess process;
  int cross_rank = 0;
  int local_rank = 0;
  int local_size = 1;
  bool checksum = false;    ///< rank 0's value is used by all ranks
  std::string host_ticket;  ///< of the HostListener of a host's first rank; a capability
  std::string selection;    ///< text of a Selection, rank 0's too; empty: the built-in rules
  bool operator==(const JoinRecord&) const = default;

  /// The version is the first line, which other versions can read too.
  std::string to_text() const;
};
/// kCorrupt for the record of another version, too: see version_in().
Result<JoinRecord> parse_join_record(std::string_view text);
std::string version_in(std::string_view text);

}  // namespace stormo::comm
