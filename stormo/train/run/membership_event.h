#pragma once

#include <stormo/observe/records.h>
#include <stormo/protocol/elastic/membership_change.h>

namespace stormo::train {

/// That an epoch begins, of members on so many hosts: the warning "membership" (docs/recipes.md).
observe::WarningRecord membership_event(const protocol::ElasticRecord& record,
                                        const protocol::MembershipChange& change, int hosts);

}  // namespace stormo::train
