#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/membership/elastic_driver.h>
#include <stormo/protocol/elastic/elastic_message.h>
#include <stormo/transport/store/store.h>

namespace stormo::train {

/// In place of a register: a log of members, as "log://run/membership.jsonl".
bool is_membership_log(std::string_view register_address);
/// The records in it; an error if they do not begin with so many ranks.
Result<std::vector<protocol::ElasticRecord>> open_membership_log(std::string_view register_address,
                                                                 int ranks);

struct ReplayOptions {
  std::string register_address;             ///< the log
  std::string me;                           ///< identity of this process
  std::vector<protocol::ElasticEntry> all;  ///< that were started, by rank, with their addresses
  Rank rank = 0;                            ///< of this one among them
  transport::StoreClient* store = nullptr;  ///< of the job; borrowed
  std::function<void(Epoch)> abort = {};    ///< see ElasticDriver::Options
};

/// Orders a process what it did in a run whose log of members is there: the same steps among the
/// same members. So they have the same bits. Nobody is lost meanwhile. A process that is no member
/// of an epoch waits for its end; who becomes one again gets the state as a newcomer did. States
/// are compared with those in the log. Refuses logs of other ranks.
Result<std::unique_ptr<membership::ElasticDriver>> replay_membership(ReplayOptions options);

}  // namespace stormo::train
