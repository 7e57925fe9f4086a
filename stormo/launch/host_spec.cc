#include <stormo/launch/host_spec.h>

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

#include <stormo/base/text.h>
#include <stormo/base/units.h>
#include <stormo/launch/environment.h>

namespace stormo::launch {
namespace {

/// One item of the list; the empty text, or what is wrong with it.
std::string parse_host(std::string_view item, HostSlots& out) {
  std::string_view name = item;
  std::string_view slots;
  bool has_slots = false;
  const std::size_t bracket = item.starts_with('[') ? item.find(']') : 0;
  if (bracket == std::string_view::npos) return fmt::format("'{}': no ']' after the address", item);
  const std::size_t colon = item.find(':', bracket);
  if (colon != std::string_view::npos) {
    name = item.substr(0, colon);
    slots = item.substr(colon + 1);
    has_slots = true;
  }
  if (bracket > 0) name = name.substr(1, bracket - 1);
  if (slots.find(':') != std::string_view::npos)
    return fmt::format("'{}': write an IPv6 address in brackets, [fd00::2]:2", item);
  if (name.empty()) return fmt::format("'{}': the host's name is missing", item);
  // The name ends in the argument list of the remote shell, where "-oX" would be an option.
  const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '-' || c == '_' || c == ':' || c == '@' || c == '%';
  });
  if (!plain || name.front() == '-') return fmt::format("'{}' is not a host name", name);
  out.name = name;
  if (!has_slots) return {};
  out.slots = number_in<int>(slots).value_or(0);
  if (out.slots < 1 || out.slots > kMaxRanks)
    return fmt::format("'{}': slots must be a whole number from 1 to {}", item, kMaxRanks);
  return {};
}

/// Why this system could not run so many processes, as figures.
std::string limits_of_this_host() {
  struct rlimit processes {};
  ::getrlimit(RLIMIT_NPROC, &processes);
  struct sysinfo memory {};
  ::sysinfo(&memory);
  const std::string allowed = processes.rlim_cur == RLIM_INFINITY
                                  ? "no limit of processes"
                                  : fmt::format("at most {} processes", processes.rlim_cur);
  return fmt::format("this host has {} of memory and allows {}",
                     format_bytes(std::uint64_t{memory.totalram} * memory.mem_unit), allowed);
}

Status too_many(int ranks) {
  return invalid_argument(fmt::format(
      "-n {}: more than {} ranks are refused: each is a process with its own memory, and "
      "{}; start fewer ranks, with more threads each",
      ranks, kMaxRanks, limits_of_this_host()));
}

/// A soft bound that fork() would hit half-way.
Status check_process_limit(int ranks) {
  struct rlimit processes {};
  if (::getrlimit(RLIMIT_NPROC, &processes) != 0 || processes.rlim_cur == RLIM_INFINITY) return {};
  if (static_cast<rlim_t>(ranks) < processes.rlim_cur) return {};
  return invalid_argument(fmt::format("-n {}: {}; raise the limit (ulimit -u) or start fewer ranks",
                                      ranks, limits_of_this_host()));
}

}  // namespace

Result<std::vector<std::string>> remote_shell_arguments(std::string_view shell_template,
                                                        std::string_view host) {
  constexpr std::string_view kHost = "{host}";
  std::vector<std::string> out;
  bool found = false;
  std::istringstream words{std::string(shell_template)};
  for (std::string word; words >> word;) {
    for (std::size_t at; (at = word.find(kHost)) != std::string::npos; found = true)
      word.replace(at, kHost.size(), host);
    out.push_back(word);
  }
  if (!found)
    return invalid_argument(fmt::format(
        "remote shell '{}' does not say where the host goes; write it like 'ssh {{host}}'",
        shell_template));
  return out;
}

bool is_this_host(std::string_view name) {
  return name == "localhost" || name == "::1" || name.starts_with("127.");
}

Result<std::vector<HostSlots>> parse_hosts(std::string_view text) {
  std::vector<HostSlots> hosts;
  std::string wrong;
  std::set<std::string> seen;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    more = comma != std::string_view::npos;
    const std::string_view item = text.substr(0, comma);
    if (more) text.remove_prefix(comma + 1);
    HostSlots host;
    const std::string problem =
        item.empty() ? "an item between commas is empty" : parse_host(item, host);
    if (!problem.empty())
      wrong += "\n  " + problem;
    else if (!seen.insert(host.name).second)
      wrong += fmt::format("\n  '{}' is listed twice; give it once, with all its slots", host.name);
    hosts.push_back(std::move(host));
  }
  if (!wrong.empty()) return invalid_argument("list of hosts (host:slots,host:slots):" + wrong);
  return hosts;
}

Result<std::vector<HostShare>> place_ranks(std::optional<int> ranks,
                                           const std::vector<HostSlots>& hosts) {
  if (!ranks && hosts.empty())
    return invalid_argument("say how many ranks to start with -n, or where with -H host:slots");
  if (ranks && *ranks < 1)
    return invalid_argument(
        fmt::format("-n {}: the number of ranks must be 1 to {}", *ranks, kMaxRanks));
  if (ranks && *ranks > kMaxRanks) return too_many(*ranks);
  if (hosts.empty()) {
    STORMO_RETURN_IF_ERROR(check_process_limit(*ranks));
    return std::vector<HostShare>{{"localhost", 0, *ranks}};
  }
  const int slots = std::accumulate(hosts.begin(), hosts.end(), 0,
                                    [](int sum, const HostSlots& h) { return sum + h.slots; });
  if (!ranks && slots > kMaxRanks) return too_many(slots);
  if (ranks && *ranks > slots)
    return invalid_argument(fmt::format(
        "-n {} needs more than the {} slots of -H; add hosts or slots, or start fewer ranks",
        *ranks, slots));
  int left = ranks.value_or(slots);
  std::vector<HostShare> shares;
  for (const HostSlots& h : hosts) {
    const int here = std::min(left, h.slots);
    if (here == 0) break;
    const Rank first = shares.empty() ? 0 : shares.back().first_rank + shares.back().ranks;
    shares.push_back({h.name, first, here});
    left -= here;
    if (is_this_host(h.name)) STORMO_RETURN_IF_ERROR(check_process_limit(here));
  }
  return shares;
}

}  // namespace stormo::launch
