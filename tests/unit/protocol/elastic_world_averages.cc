// Where the members of an ElasticWorld change their states by themselves, and average them.
#include <cstdint>
#include <vector>

#include "tests/unit/protocol/elastic_world.h"

namespace stormo::protocol::test {
namespace {

constexpr std::uint64_t kPeriod = 4;

bool ends_period(std::uint64_t step) { return step > 0 && step % kPeriod == 0; }

}  // namespace

ElasticWorld::Entry ElasticWorld::entry_of(const Process& p) const {
  return {.samples = p.order.part, .state = p.state, .history = p.history, .common = p.common};
}

/// Behind the step before the one that is ordered.
bool ElasticWorld::is_average_due(const Process& p) {
  const std::uint64_t step = p.order.step - 1;
  return ends_period(step) && p.history.last.step != step;
}

// Who gets it has taken it, whatever the others have; then it does its step. An abort is of the
// whole group: where it came in the average, what follows in the step fails.
void ElasticWorld::average(std::size_t slot, const RunStep& action) {
  Process& p = processes_[slot];
  const Key key{action.epoch, Part::kAverage, action.step, p.attempt};
  begin_part(p, key);
  when_running(slot, random(1, 10), [this, slot, key] {
    const Process& q = processes_[slot];
    if (q.part != Part::kAverage || q.key != key || q.is_aborted) return;
    handle(slot, MainThread{.is_waiting = true});
    if (q.is_alive) enter(slot, key, entry_of(q));
  });
}

void ElasticWorld::take_average(std::size_t slot, const Key& key, const Collective& all) {
  check_histories(all);
  Process& p = processes_[slot];
  State mean{};
  for (const auto& entry : all.entries) mean = after(mean, 0, hash_of(entry->state, 0));
  p.state = p.common = mean;
  p.history.take({.epoch = std::get<Epoch>(key), .step = p.order.step - 1});
  ++counts_.averages;
  const bool is_aborted = p.is_aborted;
  begin_step(slot);
  if (is_aborted) return abort(slot);
  handle(slot, MainThread{.is_waiting = false});
}

/// Where an epoch begins. Who has no state gets that of a donor.
void ElasticWorld::settle_average(Process& p, const Collective& all) {
  const std::uint64_t step = all.record.base_step;
  std::vector<std::int64_t> taken;
  for (std::size_t rank = 0; rank < all.entries.size(); ++rank) {
    const bool has_state = all.record.is_donor(all.record.members[rank].id.identity);
    taken.push_back(has_state ? taken_behind(step, all.entries[rank]->history) : kHasNoState);
  }
  const Settlement found = ends_period(step) ? settle(taken) : Settlement{};
  const auto settled = [&](std::size_t rank) {
    Entry entry = *all.entries[rank];
    if (!found.from || taken[rank] == taken[*found.from]) return entry;
    entry.history.take(average_of(taken[*found.from], step));
    if (options_.bug == Bug::kKeepsHalfAnAverage) {
      entry.common = entry.state;
    } else {
      entry.state = entry.common = all.entries[*found.from]->common;
    }
    ++counts_.given_averages;
    return entry;
  };
  counts_.made_anew += found.is_made_anew ? 1 : 0;
  std::uint32_t newcomers = 0;
  for (std::size_t rank = 0; rank < all.entries.size(); ++rank) {
    const std::string& identity = all.record.members[rank].id.identity;
    std::size_t from = rank;
    if (taken[rank] == kHasNoState) {
      from = *all.record.rank_of(Healing::donor_of(all.record, newcomers++, identity));
    }
    if (identity != p.id.identity) continue;
    const Entry entry = settled(from);
    p.state = entry.state;
    p.history = entry.history;
    p.common = entry.common;
  }
  const bool again = options_.bug == Bug::kAveragesAgain && ends_period(step);
  if (again && p.history.last.step == step) p.history.last = p.history.before;
}

// No average is made of another one, and nobody goes on from a part of one.
void ElasticWorld::check_histories(const Collective& all) {
  const Entry& first = *all.entries.front();
  for (const auto& entry : all.entries) {
    if (entry->history.last != first.history.last || entry->common != first.common) {
      return fail("members go on from different averages");
    }
  }
}

}  // namespace stormo::protocol::test
