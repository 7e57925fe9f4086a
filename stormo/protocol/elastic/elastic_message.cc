#include <stormo/protocol/elastic/elastic_message.h>

#include <algorithm>

namespace stormo::protocol {

std::optional<std::size_t> ElasticRecord::rank_of(std::string_view identity) const {
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].id.identity == identity) return i;
  }
  return {};
}

bool ElasticRecord::names(const MemberId& id) const {
  return std::ranges::any_of(members, [&](const ElasticEntry& m) { return m.id == id; });
}

bool ElasticRecord::is_donor(std::string_view identity) const {
  return std::ranges::find(donors, identity) != donors.end();
}

std::uint32_t ElasticRecord::part_of(std::string_view identity) const {
  const std::optional<std::size_t> rank = rank_of(identity);
  return rank ? members[*rank].part : 0;
}

std::string_view host_of(std::string_view identity) {
  return identity.substr(0, identity.rfind('/'));
}

bool contains(std::span<const MemberId> ids, const MemberId& id) {
  return std::ranges::find(ids, id) != ids.end();
}

}  // namespace stormo::protocol
