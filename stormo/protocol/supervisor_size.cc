// How many ranks a job has: some leave, others come, while it goes on.
#include <algorithm>
#include <csignal>

#include <stormo/protocol/supervisor.h>

namespace stormo::protocol {

std::vector<Rank> Supervisor::ranks() const {
  std::vector<Rank> out;
  for (const Member& m : members_) {
    if (m.is_present()) out.push_back(static_cast<Rank>(&m - members_.data()));
  }
  return out;
}

int Supervisor::num_free() const {
  return static_cast<int>(
      std::ranges::count_if(members_, [this](const Member& m) { return is_free(m); }));
}

int Supervisor::num_on_host(int cross_rank) const {
  return static_cast<int>(std::ranges::count_if(
      members_, [cross_rank](const Member& m) { return m.place.cross_rank == cross_rank; }));
}

bool Supervisor::is_anybody_leaving() const {
  return std::ranges::any_of(members_, [](const Member& m) { return m.leaves && !m.gone; });
}

bool Supervisor::is_closed(int cross_rank) const {
  return std::ranges::find(closed_hosts_, cross_rank) != closed_hosts_.end();
}

bool Supervisor::is_free(const Member& m) const {
  return !m.is_present() && !is_closed(m.place.cross_rank);
}

// The last ranks leave, the first ones that are not there come back.
void Supervisor::take(const SizeAsked& e, TimePoint now) {
  if (!may_change()) return;
  for (const RankPlace& place : e.places) {
    members_.push_back({.place = place, .gone = true, .is_added = true, .wanted = false});
  }
  for (auto m = members_.rbegin(); m != members_.rend() && num_ranks() > e.ranks; ++m) {
    if (m->is_present()) dismiss(*m);
  }
  for (Member& m : members_) {
    if (num_ranks() >= e.ranks) return;
    if (!is_free(m)) continue;
    m.wanted = true;
    if (m.gone) m.returns_at = now;  // else when it has left
  }
}

void Supervisor::take(const HostLeaves& e) {
  if (!may_change() || is_closed(e.cross_rank)) return;
  closed_hosts_.push_back(e.cross_rank);
  for (Member& m : members_) {
    if (m.place.cross_rank == e.cross_rank && m.is_present()) dismiss(m);
  }
}

void Supervisor::dismiss(Member& m) {
  m.wanted = false;
  m.returns_at.reset();
  if (m.gone || std::exchange(m.leaves, true)) return;
  news_.emplace_back(LeaveRank{static_cast<Rank>(&m - members_.data())});
}

/// One that was told before it could listen dies of the signal that tells it.
bool Supervisor::has_left(const Member& m) const {
  if (!options_.replaces || phase_ != Phase::kRunning) return false;
  const bool as_told = m.code == 0 || m.signal == SIGTERM || !m.unstarted.empty();
  return m.code == kHasLeft || (m.leaves && as_told);
}

void Supervisor::note_left(Rank rank, TimePoint now) {
  Member& m = members_[static_cast<std::size_t>(rank)];
  m.left = m.excused = true;
  if (!m.leaves) m.wanted = false;
  news_.emplace_back(RankLeft{rank, name(rank) + " has left"});
  if (m.wanted && may_change()) m.returns_at = now;
}

}  // namespace stormo::protocol
