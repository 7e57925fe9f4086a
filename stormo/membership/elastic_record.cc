#include <stormo/membership/elastic_record.h>

#include <utility>

namespace stormo::membership {

protocol::ElasticRecord elastic_record_of(const EpochRecord& record) {
  protocol::ElasticRecord out{.epoch = record.epoch,
                              .base_step = record.base_step,
                              .state_hash = record.state_hash,
                              .plan_hash = record.plan_hash,
                              .donors = record.donors,
                              .group = record.group};
  for (const Member& m : record.members) {
    out.members.push_back({.id = {.identity = m.identity, .incarnation = m.incarnation},
                           .address = m.address,
                           .shares = m.shares,
                           .part = m.part});
  }
  return out;
}

EpochRecord epoch_record_of(const protocol::ElasticRecord& record, std::string job) {
  EpochRecord out{.job = std::move(job),
                  .epoch = record.epoch,
                  .members = {},
                  .base_step = record.base_step,
                  .state_hash = record.state_hash,
                  .plan_hash = record.plan_hash,
                  .donors = record.donors,
                  .group = record.group};
  for (const protocol::ElasticEntry& e : record.members) {
    out.members.push_back({.identity = e.id.identity,
                           .incarnation = e.id.incarnation,
                           .address = e.address,
                           .shares = e.shares,
                           .part = e.part});
  }
  return out;
}

}  // namespace stormo::membership
