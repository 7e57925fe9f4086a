#include <stormo/protocol/elastic/peer_watch.h>

#include <algorithm>
#include <utility>

namespace stormo::protocol {

namespace {
constexpr int kSlowSteps = 5;
}

void PeerWatch::advance(TimePoint now) {
  if (last_) own_time_ += std::clamp(now - *last_, Duration::zero(), limits_.beat);
  last_ = now;
}

void PeerWatch::begin(const ElasticRecord& record) {
  for (Peer& p : peers_) p.is_member = false;
  std::erase_if(peers_,
                [&](const Peer& p) { return record.rank_of(p.status.from.identity).has_value(); });
  std::erase_if(dead_, [&](const MemberId& id) { return !record.names(id); });
  const Duration heard_at = record.names(me_) ? own_time_ : own_time_ - limits_.silence;
  for (const ElasticEntry& member : record.members) {
    if (member.id == me_) continue;
    peers_.push_back({.status = {.from = member.id},
                      .is_member = true,
                      .heard_at = heard_at,
                      .progressed_at = own_time_});
  }
}

void PeerWatch::hear(const MemberStatus& status) {
  for (const Peer& p : peers_) {
    if (p.status.from.identity != status.from.identity) continue;
    if (p.status.from.incarnation > status.from.incarnation) return;
    // an identity starts again only when its former process has ended
    if (p.status.from.incarnation < status.from.incarnation) bury(p.status.from);
  }
  std::erase_if(peers_, [&](const Peer& p) {
    return !p.is_member && p.status.from.identity == status.from.identity &&
           p.status.from != status.from;
  });
  const auto it =
      std::ranges::find_if(peers_, [&](const Peer& p) { return p.status.from == status.from; });
  Peer& peer = it == peers_.end() ? peers_.emplace_back() : *it;
  const bool moves =
      !peer.has_status || status.progress != peer.status.progress || status.is_waiting;
  if (moves) peer.progressed_at = own_time_;
  peer.status = status;
  peer.has_status = true;
  peer.heard_at = own_time_;
}

void PeerWatch::bury(const MemberId& id) {
  if (!contains(dead_, id)) dead_.push_back(id);
}

void PeerWatch::blame(std::string_view identity) {
  for (Peer& p : peers_) p.is_blamed |= p.status.from.identity == identity;
}

const PeerWatch::Peer* PeerWatch::find(const MemberId& id) const {
  const auto it = std::ranges::find_if(peers_, [&](const Peer& p) { return p.status.from == id; });
  return it == peers_.end() ? nullptr : &*it;
}

bool PeerWatch::is_stuck(const Peer& p) const {
  const bool works =
      p.has_status && !p.status.is_waiting &&
      (p.status.standing == Standing::kRunning || p.status.standing == Standing::kHalting);
  return works && is_too_long(own_time_ - p.progressed_at);
}

bool PeerWatch::is_too_long(Duration idle) const {
  return idle >= std::max(limits_.stuck, slowest_step_ * kSlowSteps);
}

bool PeerWatch::is_lost(const MemberId& id) const {
  const Peer* const p = find(id);
  return p == nullptr || is_dead(id) || p->is_blamed || is_silent(*p) || is_stuck(*p);
}

Departure PeerWatch::departure_of(const MemberId& id) const {
  const Peer* const p = find(id);
  if (p != nullptr && p->has_status && p->status.leaves) return Departure::kLeft;
  if (is_dead(id)) return Departure::kEnded;
  if (p == nullptr) return Departure::kUnknown;
  if (p->is_blamed) return Departure::kUnreachable;
  if (is_silent(*p)) return Departure::kSilent;
  return is_stuck(*p) ? Departure::kStuck : Departure::kUnknown;
}

const MemberStatus* PeerWatch::status_of(const MemberId& id) const {
  const Peer* const p = find(id);
  return p == nullptr || !p->has_status ? nullptr : &p->status;
}

std::vector<MemberId> PeerWatch::heard() const {
  std::vector<MemberId> ids;
  for (const Peer& p : peers_) {
    if (!is_lost(p.status.from)) ids.push_back(p.status.from);
  }
  return ids;
}

std::vector<const MemberStatus*> PeerWatch::outside() const {
  std::vector<const MemberStatus*> found;
  for (const Peer& p : peers_) {
    if (!p.is_member && p.has_status && !is_lost(p.status.from)) found.push_back(&p.status);
  }
  return found;
}

Duration PeerWatch::next_loss() const {
  Duration next = limits_.beat;
  for (const Peer& p : peers_) {
    const Duration left = p.heard_at + limits_.silence - own_time_;
    if (left > Duration::zero()) next = std::min(next, left);
  }
  return next;
}

}  // namespace stormo::protocol
