#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <stormo/protocol/elastic/elastic_message.h>

namespace stormo::protocol {

/// What has become of a member that is missing in a later record.
enum class Departure : std::uint8_t {
  kUnknown,      ///< others know it
  kLeft,         ///< as it was asked to
  kEnded,        ///< its process has
  kUnreachable,  ///< the connection to it is broken
  kSilent,       ///< its beats have not come
  kStuck,        ///< they have, but it did nothing
};

struct MemberGone {
  MemberId id{};
  Departure how = Departure::kUnknown;
};

/// From one record to a later one. Members by identity; who was started again is in two lists.
struct MembershipChange {
  std::vector<std::string> lost{}, left{}, joined{};
  /// Of the first that applies: what has become of the first of `lost` ("ended", "unreachable",
  /// "silent", "stuck", "unknown"), "left", "joined"; "again": the members are the same.
  std::string cause{};
};

inline const char* name_of(Departure how) {
  switch (how) {
    case Departure::kLeft: return "left";
    case Departure::kEnded: return "ended";
    case Departure::kUnreachable: return "unreachable";
    case Departure::kSilent: return "silent";
    case Departure::kStuck: return "stuck";
    default: return "unknown";
  }
}

/// `gone`: what is known of members that are missing.
inline MembershipChange change_between(const ElasticRecord& before, const ElasticRecord& now,
                                       std::span<const MemberGone> gone) {
  MembershipChange change;
  for (const ElasticEntry& member : before.members) {
    if (now.names(member.id)) continue;
    const auto known = std::ranges::find(gone, member.id, &MemberGone::id);
    const Departure how = known == gone.end() ? Departure::kUnknown : known->how;
    if (how == Departure::kLeft) {
      change.left.push_back(member.id.identity);
      continue;
    }
    if (change.lost.empty()) change.cause = name_of(how);
    change.lost.push_back(member.id.identity);
  }
  for (const ElasticEntry& member : now.members) {
    if (!before.names(member.id)) change.joined.push_back(member.id.identity);
  }
  if (!change.cause.empty()) return change;
  change.cause = !change.left.empty()     ? name_of(Departure::kLeft)
                 : !change.joined.empty() ? "joined"
                                          : "again";
  return change;
}

}  // namespace stormo::protocol
