#include <stormo/transport/shm/host_group.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace stormo::transport {
namespace {

/// How often a waiter looks whether the rank that it waits for has left.
constexpr Duration kLeftCheck = std::chrono::milliseconds(50);

Status lost(int peer) {
  return {Code::kPeerLost, fmt::format("rank {} of this host has left the group", peer)};
}

}  // namespace

HostGroup::HostGroup(HostParts parts, std::shared_ptr<Health> health)
    : parts_(std::move(parts)),
      health_(std::move(health)),
      fence_(
          parts_.region, parts_.rank,
          [](std::string_view line) { fmt::print(stderr, "stormo: {}\n", line); }, Fence::kPatience,
          parts_.on_stopped),
      policy_(wait_policy(parts_.region->ranks(), parts_.cores)),
      threads_(parts_.peer_arenas.empty()) {
  if (threads_) return;
  // where ptrace is restricted (Yama), what our parent started may still read us: the other ranks
  prctl(PR_SET_PTRACER, getppid(), 0, 0, 0);
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  probe_ = std::make_unique<std::uint64_t>(static_cast<std::uint64_t>(now));
  Cell& cell = region()->cell(rank());
  cell.home = {getpid(), reinterpret_cast<std::uintptr_t>(arena().base())};
  cell.probe_at = reinterpret_cast<std::uintptr_t>(probe_.get());
  cell.probe = *probe_;
}

/// A process identifier may name somebody else here (containers), hence the probe.
HostGroup::Reach HostGroup::reach(int peer) const {
  const Cell& cell = region()->cell(peer);
  const auto others = static_cast<std::size_t>(peer < rank() ? peer : peer - 1);
  const std::uint64_t mapped =
      peer == rank() ? arena().capacity() : parts_.peer_arenas[others]->size();
  const PeerMemory memory(address(peer, 0), mapped, cell.home);
  std::uint64_t found = 0;
  const std::uintptr_t at =
      reinterpret_cast<std::uintptr_t>(address(peer, 0)) + (cell.probe_at - cell.home.arena);
  const Status read = memory.read(&found, reinterpret_cast<const void*>(at), sizeof found);
  return {memory, read.ok() && found == cell.probe};
}

/// Everybody has arrived once, so everybody's cell says where it lives.
void HostGroup::reach_peers() {
  bool all = true;
  for (int r = 0; r < size(); ++r) {
    const Reach reached = reach(r);
    peers_.push_back(reached.memory);
    all &= reached.can_read;
  }
  if (all) region()->cell(rank()).reaches_all.store(1, std::memory_order_release);
}

bool HostGroup::reached_by_all() {
  for (int r = 0; !threads_ && !reached_by_all_ && r < size(); ++r) {
    if (region()->cell(r).reaches_all.load(std::memory_order_acquire) == 0) return false;
  }
  reached_by_all_ = true;
  return true;
}

void HostGroup::arrive() {
  region()->core(rank()).store(sched_getcpu() + 1, std::memory_order_relaxed);
  region()->cell(rank()).arrived.raise(++phase_);
}

/// What was true of the cores when the group was made may have changed: a peer that was last seen
/// on this very core comes only when this rank gives way.
WaitPolicy HostGroup::policy_for(int peer) const {
  const std::int32_t there = region()->core(peer).load(std::memory_order_relaxed);
  return there == sched_getcpu() + 1 ? wait_policy(/*ranks=*/2, /*cores=*/1) : policy_;
}

Status HostGroup::await(int peer, Deadline by) {
  Cell& cell = region()->cell(peer);
  if (look_for(cell.arrived, phase_, policy_)) return {};  // the clock costs as much as a hop
  waited_ = true;
  while (!has_arrived(peer)) {
    const WaitPolicy policy = policy_for(peer);
    const Deadline slice = Deadline::at(std::min(by.when(), Deadline::after(kLeftCheck).when()));
    const Status waited = wait_for(cell.arrived, phase_, {policy, *health_, slice});
    if (waited.ok()) break;
    if (health_->failed()) return health_->status();  // its cause may be a deadline, too
    if (has_left(rank())) return {Code::kCancelled, "this rank has left the group"};
    if (fence_.is_closed() && !has_arrived(peer)) return why_closed();
    if (by.expired()) STORMO_RETURN_IF_ERROR(missing());
    if (has_left(peer) && !has_arrived(peer)) return lost(peer);
  }
  return {};
}

Status HostGroup::await_all(Deadline by) {
  for (int peer = 0; peer < size(); ++peer) STORMO_RETURN_IF_ERROR(await(peer, by));
  if (peers_.empty() && !threads_) reach_peers();
  return {};
}

/// OK when nobody is.
Status HostGroup::missing() const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (!has_arrived(r)) ranks.push_back(r);
  }
  if (ranks.empty()) return {};
  return {Code::kDeadlineExceeded,
          fmt::format("the deadline passed before local rank {} arrived", fmt::join(ranks, ", "))};
}

Status HostGroup::why_closed() const {
  for (int r = 0; r < size(); ++r) {
    if (has_left(r)) return lost(r);
  }
  return {Code::kCancelled, "the group of this host has failed"};
}

void HostGroup::leave() { region()->cell(rank()).left.store(1, std::memory_order_release); }

}  // namespace stormo::transport
