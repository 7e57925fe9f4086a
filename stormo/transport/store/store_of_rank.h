#pragma once

#include <memory>
#include <string_view>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/transport/store/store.h>

namespace stormo::transport {

/// A rank that serves the Store. Its connections stay open while its process is stopped, so the
/// server answers heartbeats, and counts as lost when it has not for `silence` (zero: no limit).
struct ServingRank {
  Rank rank = 0;
  Duration silence{};
};

/// StoreClient::connect() for a Store that a rank serves. Failures name the rank.
Result<std::unique_ptr<StoreClient>> connect_to_rank(ServingRank server,
                                                     StoreClient::Options options, Deadline by);

}  // namespace stormo::transport
