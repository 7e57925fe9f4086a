#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/server/ledger/shard_record.h>

namespace stormo::train {

/// What a record of an asynchronous run says besides its events (server/ledger/shard_record.h): the
/// file run.json in its folder.
struct RunRecord {
  int workers = 1;
  int threads = 1;                 ///< that each worker computed with
  std::int64_t steps = 0;          ///< of the whole run
  std::string recipe_json = "{}";  ///< resolved
  std::uint64_t origin = 0;        ///< of the workers' events, see server::record_origin()
  std::string weights_hash;        ///< of the outcome; empty: the run did not come to its end
};

/// Writes the file, as a whole or not at all. kIo.
Status write_run_record(const std::string& directory, const RunRecord& record);
/// kNotFound without the file, kCorrupt for another one.
Result<RunRecord> read_run_record(const std::string& directory);
/// The events of each worker. kCorrupt also for a worker that has not left its servers, as it does
/// at the end, though the run came to its end.
Result<std::vector<std::vector<server::ShardEvent>>> read_events(const std::string& directory,
                                                                 const RunRecord& record);

}  // namespace stormo::train
