#include <stormo/protocol/stall.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <stormo/base/units.h>

namespace stormo::protocol {
namespace {

constexpr int kSlowSteps = 5;
constexpr int kStartFactor = 5;
constexpr std::size_t kMaxListed = 8;

Duration times(Duration d, int factor) {
  return d > Duration::max() / factor ? Duration::max() : d * factor;
}

std::string seconds(Duration d) {
  if (d < std::chrono::seconds(10)) return format_duration(d);
  return fmt::format("{} s", std::chrono::duration_cast<std::chrono::seconds>(d).count());
}

/// "rank 1", "ranks 0, 2".
std::string list(std::span<const Rank> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < kMaxListed; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  if (ranks.size() > kMaxListed) text += fmt::format(" and {} more", ranks.size() - kMaxListed);
  return text;
}

const GroupReport* in_group(const RankReport& rank, const std::string& name) {
  const auto found = std::find_if(rank.groups.begin(), rank.groups.end(),
                                  [&](const GroupReport& g) { return g.group == name; });
  return found == rank.groups.end() ? nullptr : &*found;
}

bool waits_somewhere(const RankReport& rank) {
  return std::any_of(rank.groups.begin(), rank.groups.end(),
                     [](const GroupReport& g) { return g.running; });
}

enum class Standing { kOutside, kMissing, kWaiting, kPast };

Standing standing_of(const GroupReport& mine, const GroupReport* theirs) {
  if (theirs == nullptr) return Standing::kOutside;
  if (mine.is_message) {
    if (theirs->rank == mine.rank) return Standing::kWaiting;
    if (theirs->rank != mine.peer && mine.peer != kAnyPeer) return Standing::kOutside;
    const bool facing = theirs->running && theirs->is_message && theirs->peer == mine.rank;
    return facing ? Standing::kWaiting : Standing::kMissing;
  }
  if (theirs->place < mine.place) return Standing::kMissing;
  return theirs->place == mine.place && theirs->running ? Standing::kWaiting : Standing::kPast;
}

std::string where(const GroupReport& in) {
  return in.group.empty() ? in.operation : in.operation + " in " + in.group;
}

const RankReport& report_of(Rank rank, std::span<const RankReport> ranks) {
  return *std::find_if(ranks.begin(), ranks.end(), [&](const auto& r) { return r.rank == rank; });
}

/// Those that are to blame: one by its full name, several by their numbers.
std::string blamed(std::span<const Rank> some, std::span<const RankReport> ranks) {
  return some.size() == 1 ? report_of(some.front(), ranks).identity : list(some);
}

std::string text_of(const Stall& stall, const GroupReport& in, std::span<const RankReport> ranks) {
  const bool one_waits = stall.waiting.size() == 1;
  const std::string waiting =
      stall.waiting.empty()
          ? ""
          : fmt::format("; {} {} in it", list(stall.waiting), one_waits ? "waits" : "wait");
  std::string text;
  if (!stall.silent.empty()) {
    text = fmt::format("{} {} not answer, and {} has not ended for {}{}",
                       blamed(stall.silent, ranks), stall.silent.size() == 1 ? "does" : "do",
                       where(in), seconds(stall.age), waiting);
    for (std::size_t i = 0; i < stall.silent.size() && i < kMaxListed; ++i) {
      const RankReport& r = report_of(stall.silent[i], ranks);
      if (!r.seen.empty()) text += fmt::format("; rank {}: {}", r.rank, r.seen);
    }
    return text;
  }
  if (stall.missing.empty()) {
    return fmt::format("{} has not ended for {}, and nobody is missing: {} {} in it", where(in),
                       seconds(stall.age), list(stall.waiting), one_waits ? "is" : "are");
  }
  text = fmt::format("{} {} not reached {} for {}{}", blamed(stall.missing, ranks),
                     stall.missing.size() == 1 ? "has" : "have", where(in), seconds(stall.age),
                     waiting);
  for (std::size_t i = 0; i < stall.missing.size() && i < kMaxListed; ++i) {
    const RankReport& r = report_of(stall.missing[i], ranks);
    text += fmt::format("; rank {}'s last: {}", r.rank, r.doing);
  }
  return text;
}

}  // namespace

StallBounds stall_bounds(const StallLimits& limits, bool started, Duration slowest_step) {
  const auto never = [](Duration d) { return d <= Duration::zero(); };
  StallBounds b{Duration::max(), Duration::max()};
  if (!never(limits.warning)) {
    b.warn_after = std::max(limits.warning, times(slowest_step, kSlowSteps));
  }
  if (!never(limits.timeout)) {
    const bool far = limits.timeout > Duration::max() - slowest_step;
    b.end_after = far ? Duration::max() : limits.timeout + slowest_step;
    if (!never(limits.warning)) b.end_after = std::max(b.end_after, b.warn_after);
  }
  if (started) return b;
  return {times(b.warn_after, kStartFactor), times(b.end_after, kStartFactor)};
}

Stall find_stall(const StallWait& wait, std::span<const RankReport> ranks) {
  Stall stall;
  std::vector<Rank> stuck_elsewhere;
  std::optional<Duration> idle_of_missing;
  Duration idle_of_waiting = wait.waited;
  bool holds_up_others = false;  // they wait after this operation, and will say so
  int members = 0;
  for (const RankReport& r : ranks) {
    if (!r.answered) {
      stall.silent.push_back(r.rank);
      continue;
    }
    const GroupReport* const theirs = in_group(r, wait.in.group);
    members += theirs == nullptr ? 0 : 1;
    const Standing standing = standing_of(wait.in, theirs);
    if (standing == Standing::kWaiting) {
      stall.waiting.push_back(r.rank);
      idle_of_waiting = std::min(idle_of_waiting, r.idle);
    } else if (standing == Standing::kMissing) {
      (waits_somewhere(r) ? stuck_elsewhere : stall.missing).push_back(r.rank);
      // all of them must come, but of many that may send one is enough
      const bool one_is_enough = wait.in.is_message && wait.in.peer == kAnyPeer;
      const Duration so_far = idle_of_missing.value_or(r.idle);
      idle_of_missing = one_is_enough ? std::min(so_far, r.idle) : std::max(so_far, r.idle);
    } else if (standing == Standing::kPast) {
      holds_up_others |= waits_somewhere(r);
    }
  }
  if (members == wait.in.size) stall.silent.clear();  // they are in other groups
  // who waits elsewhere is a cause only when there is no other
  if (stall.missing.empty()) stall.missing = std::move(stuck_elsewhere);
  stall.age = wait.waited;
  if (stall.silent.empty()) {
    stall.age = std::min(stall.age, idle_of_missing.value_or(idle_of_waiting));
  }
  if (holds_up_others && stall.missing.empty() && stall.silent.empty()) stall.age = {};
  stall.text = text_of(stall, wait.in, ranks);
  return stall;
}

}  // namespace stormo::protocol
