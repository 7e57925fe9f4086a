#include <stormo/comm/operation/members.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <stormo/base/printable.h>

namespace stormo::comm {

namespace {

constexpr std::size_t kMaxName = 255;
constexpr std::size_t kShownName = 40;
constexpr std::size_t kShownMembers = 8;

}  // namespace

Status check_members(std::span<const Rank> members, int size, std::string_view call) {
  if (members.empty()) return invalid_argument(fmt::format("{}: no members", call));
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] < 0 || members[i] >= size) {
      return invalid_argument(
          fmt::format("{}: there is no rank {} in a group of {}", call, members[i], size));
    }
    if (i > 0 && members[i] <= members[i - 1]) {
      return invalid_argument(
          fmt::format("{}: members {} are not in ascending order", call, fmt::join(members, ", ")));
    }
  }
  return {};
}

Status check_group_of(std::span<const Rank> members, const std::string& name, Rank me, int size) {
  STORMO_RETURN_IF_ERROR(check_members(members, size, "group_of"));
  if (name.empty() || name.size() > kMaxName) {
    return invalid_argument(
        fmt::format("group_of: a name has 1 to {} bytes, this one has {}", kMaxName, name.size()));
  }
  if (std::ranges::binary_search(members, me)) return {};
  return invalid_argument(fmt::format("group_of: rank {} is none of the members {} of {}", me,
                                      fmt::join(members, " "), shown_name(name)));
}

std::string shown_name(const std::string& name) {
  return fmt::format("group '{}{}'", printable_line(name.substr(0, kShownName)),
                     name.size() > kShownName ? "..." : "");
}

std::string shown_members(std::span<const Rank> members) {
  if (members.size() <= kShownMembers) return fmt::format("{}", fmt::join(members, " "));
  return fmt::format("{} ... {} ({} ranks)", fmt::join(members.first(kShownMembers - 1), " "),
                     members.back(), members.size());
}

Result<std::shared_ptr<const void>> GroupNames::take(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::erase_if(taken_, [](const auto& entry) { return entry.second.expired(); });
  const auto token = std::make_shared<const int>();
  if (taken_.try_emplace(name, token).second) return std::shared_ptr<const void>(token);
  return invalid_argument(fmt::format(
      "group_of: {} is in use on this rank; give each group its own name", shown_name(name)));
}

std::uint32_t hash_of_members(std::span<const Rank> members) {
  std::uint32_t h = 2166136261u;
  for (const Rank r : members) h = (h ^ static_cast<std::uint32_t>(r)) * 16777619u;
  return h;
}

Membership membership_of(std::span<const Rank> members, Rank me, const HostMap& hosts) {
  Membership m;
  int host = -1;
  for (const Rank& r : members) {
    const int where = hosts.host[static_cast<std::size_t>(r)];
    if (where != host) m.ranks_per_host.push_back(0);
    host = where;
    if (r == me) {
      m.rank = static_cast<Rank>(&r - members.data());
      m.cross_rank = static_cast<int>(m.ranks_per_host.size()) - 1;
      m.local_rank = m.ranks_per_host.back();
    }
    ++m.ranks_per_host.back();
  }
  return m;
}

}  // namespace stormo::comm
