#pragma once

#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/protocol/elastic/elastic_message.h>

namespace stormo::train {

/// Where an elastic run keeps who has computed which of its steps: "membership.jsonl" in the folder
/// of its checkpoints.
std::string membership_log_in(const std::string& folder);

/// Adds a line with the record of an epoch that begins now, of members on so many hosts. `begins`:
/// no step was done before, and what is there is of another run. Makes the folder.
Status log_membership(const std::string& path, const protocol::ElasticRecord& record, int hosts,
                      bool begins);

/// The records of the last run in a log, in order; at least one.
Result<std::vector<protocol::ElasticRecord>> read_membership(const std::string& path);

}  // namespace stormo::train
