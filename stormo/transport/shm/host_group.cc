#include <stormo/transport/shm/host_group.h>

#include <fmt/format.h>

#include <algorithm>

namespace stormo::transport {
namespace {

/// How often a waiter looks whether the rank that it waits for has left.
constexpr Duration kLeftCheck = std::chrono::milliseconds(50);

}  // namespace

HostGroup::HostGroup(HostParts parts, std::shared_ptr<Health> health)
    : parts_(std::move(parts)),
      health_(std::move(health)),
      policy_(wait_policy(parts_.region->ranks(), parts_.cores)) {}

void HostGroup::arrive() { region()->cell(rank()).arrived.raise(++phase_); }

Status HostGroup::await_all(Deadline by) {
  for (int peer = 0; peer < size(); ++peer) {
    Cell& cell = region()->cell(peer);
    if (look_for(cell.arrived, phase_, policy_)) continue;  // the clock costs as much as a hop
    while (!reached(cell.arrived.load(), phase_)) {
      const Deadline slice = Deadline::at(std::min(by.when(), Deadline::after(kLeftCheck).when()));
      const Status waited = wait_for(cell.arrived, phase_, {policy_, *health_, slice});
      if (waited.ok()) break;
      if (waited.code() != Code::kDeadlineExceeded || by.expired()) return waited;
      if (cell.left.load(std::memory_order_acquire) != 0 && !reached(cell.arrived.load(), phase_)) {
        return {Code::kPeerLost, fmt::format("rank {} of this host has left the group", peer)};
      }
    }
  }
  return {};
}

void HostGroup::leave() { region()->cell(rank()).left.store(1, std::memory_order_release); }

}  // namespace stormo::transport
