#include <stormo/comm/watch/left_ranks.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include <stormo/base/rng.h>

namespace stormo::comm {
namespace {

constexpr std::size_t kMaxShownName = 256;

}  // namespace

std::string to_line(const LeftRank& left) {
  return fmt::format("{} {} {}\n", left.rank, left.in_group, left.collectives);
}

std::vector<LeftRank> parse_left_ranks(std::string_view lines) {
  std::vector<LeftRank> ranks;
  std::istringstream in{std::string(lines)};
  for (LeftRank left; in >> left.rank >> left.in_group >> left.collectives;) {
    if (std::ranges::find(ranks, left.rank, &LeftRank::rank) == ranks.end()) ranks.push_back(left);
  }
  return ranks;
}

std::vector<Rank> needed_of(std::span<const LeftRank> left, const Activities::Call& call) {
  const Operation& o = call.operation;
  const bool is_from_any = is_message(o.kind) && o.root == kAnyRank;
  if (is_from_any && std::cmp_less(left.size() + 1, call.size)) return {};  // others may send
  std::vector<Rank> needed;
  for (const LeftRank& rank : left) {
    const bool is_needed =
        is_message(o.kind) ? is_from_any || rank.in_group == o.root : rank.collectives < o.sequence;
    if (is_needed) needed.push_back(rank.rank);
  }
  std::ranges::sort(needed);
  return needed;
}

std::string have_left(std::span<const Rank> ranks) {
  return fmt::format("rank{} {} {} left in order", ranks.size() == 1 ? "" : "s",
                     fmt::join(ranks, ", "), ranks.size() == 1 ? "has" : "have");
}

std::vector<Activities::Call> RunningCalls::at_beat(std::vector<Activities::Call> calls,
                                                    std::uint64_t bytes_moved) {
  const bool is_quiet = std::exchange(bytes_moved_, bytes_moved) == bytes_moved;
  std::vector<Running> now;
  std::vector<Activities::Call> stuck;
  for (Activities::Call& call : calls) {
    Running running{.call = std::move(call)};
    const auto before = std::ranges::find(running_, running.call, &Running::call);
    if (before != running_.end()) {
      running.beats = before->beats + 1;
      running.quiet = is_quiet ? before->quiet + 1 : 0;
    }
    const bool is_stuck = is_message(running.call.operation.kind)
                              ? running.quiet >= kQuietBeats || running.beats >= kMaxBeats
                              : running.beats > 0;
    if (is_stuck) stuck.push_back(running.call);
    now.push_back(std::move(running));
  }
  running_ = std::move(now);
  return stuck;
}

std::string key_of_group(std::string_view what, std::string_view group) {
  if (group.size() <= kMaxShownName) return fmt::format("{}/{}", what, group);
  return fmt::format("{}/{}... {:016x}", what, group.substr(0, kMaxShownName), fnv1a(group));
}

}  // namespace stormo::comm
