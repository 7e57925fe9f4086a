#include <stormo/train/run/membership_event.h>

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace stormo::train {

observe::WarningRecord membership_event(const protocol::ElasticRecord& record,
                                        const protocol::MembershipChange& change, int hosts) {
  const auto number = [](auto n) { return static_cast<std::int64_t>(n); };
  std::vector<std::string> members;
  for (const protocol::ElasticEntry& m : record.members) members.push_back(m.id.identity);
  const bool is_one = members.size() == 1;
  return {.kind = "membership",
          .step = number(record.base_step),
          .message = fmt::format("epoch {}: {} rank{} on {} host{} go{} on after step {}",
                                 record.epoch, members.size(), is_one ? "" : "s", hosts,
                                 hosts == 1 ? "" : "s", is_one ? "es" : "", record.base_step),
          .fields = {{"epoch", number(record.epoch)},
                     {"ranks", number(members.size())},
                     {"hosts", number(hosts)},
                     {"members", members},
                     {"donors", record.donors},
                     {"lost", change.lost},
                     {"left", change.left},
                     {"joined", change.joined},
                     {"cause", change.cause}}};
}

}  // namespace stormo::train
