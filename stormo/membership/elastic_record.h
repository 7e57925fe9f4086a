#pragma once

#include <string>

#include <stormo/membership/epoch_record.h>
#include <stormo/protocol/elastic/elastic_message.h>

namespace stormo::membership {

/// A record as members of a job speak of it, which does not name the job.
protocol::ElasticRecord elastic_record_of(const EpochRecord& record);
/// As the register holds it.
EpochRecord epoch_record_of(const protocol::ElasticRecord& record, std::string job);

}  // namespace stormo::membership
