// What the main threads of an ElasticWorld do: the parts of a step, and their collectives.
#include <algorithm>
#include <set>

#include "tests/unit/protocol/elastic_world.h"

namespace stormo::protocol::test {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

ElasticWorld::State ElasticWorld::after(State state, std::uint64_t step, std::uint64_t gradient) {
  for (std::size_t k = 0; k < state.size(); ++k) {
    state[k] = mix(state[k] + mix(gradient + k) + step);
  }
  return state;
}

std::uint64_t ElasticWorld::hash_of(const State& state, std::uint64_t step) {
  std::uint64_t hash = step + 1;
  for (const std::uint64_t slice : state) hash = mix(hash + slice);
  return hash | 1;
}

void ElasticWorld::begin_part(Process& p, const Key& key) {
  p.part = std::get<Part>(key);
  p.key = key;
  p.is_aborted = false;
}

void ElasticWorld::order(std::size_t slot, const StartGroup& action) {
  Process& p = processes_[slot];
  p.group = action.record;
  const Wish wish{action.record.epoch, action.record.group};
  if (action.record.group != 0 && p.has_ready != wish) {
    return fail("an epoch begins with a group that a member has not made");
  }
  const Key key{action.record.epoch, Part::kGroup, 0, 0};
  begin_part(p, key);
  when_running(slot, random(5, 20), [this, slot, key] {
    const Process& q = processes_[slot];
    if (q.key == key && !q.is_aborted) enter(slot, key, entry_of(q));
  });
}

// Some never hear that it is there.
void ElasticWorld::order(std::size_t slot, const PrepareGroup& action) {
  const Wish wish{action.wish.epoch, action.wish.group};
  processes_[slot].prepares = wish;
  processes_[slot].has_ready = {};
  when_running(slot, random(20, 200), [this, slot, wish, record = action.wish] {
    if (processes_[slot].prepares != wish) return;
    std::vector<MemberId>& there = preparing_[wish];
    there.push_back(processes_[slot].id);
    if (std::ranges::all_of(record.members, [&](const auto& m) { return contains(there, m.id); })) {
      make_ready(record);
    }
  });
}

void ElasticWorld::make_ready(const ElasticRecord& wish) {
  for (const ElasticEntry& member : wish.members) {
    const std::size_t slot = slot_of(member.id.identity);
    if (chance(0.05) || !processes_[slot].is_alive || processes_[slot].id != member.id) continue;
    when_running(slot, random(0.1, 5), [this, slot, key = Wish{wish.epoch, wish.group}] {
      Process& p = processes_[slot];
      if (p.prepares != key) return;
      p.has_ready = key;
      handle(slot, GroupReady{.epoch = key.first, .group = key.second});
    });
  }
}

void ElasticWorld::order(std::size_t slot, const RunStep& action) {
  Process& p = processes_[slot];
  const bool is_again = action.step == p.order.step && action.epoch == p.order.epoch;
  p.attempt = is_again ? p.attempt + 1 : 0;
  p.order = action;
  if (options_.bug == Bug::kLedgerPlusOne && action.epoch > 1) ++p.order.part.first;
  counts_.redone += action.step <= p.started ? 1 : 0;
  p.started = std::max(p.started, action.step);
  if (options_.averages && is_average_due(p)) return average(slot, action);
  begin_step(slot);
}

void ElasticWorld::begin_step(std::size_t slot) {
  Process& p = processes_[slot];
  const Key key{p.order.epoch, Part::kStep, p.order.step, p.attempt};
  begin_part(p, key);
  if (p.hangs) return;
  when_running(slot, random(10, 20), [this, slot, key] { enter_step(slot, key); });
}

void ElasticWorld::enter_step(std::size_t slot, const Key& key) {
  const Process& p = processes_[slot];
  if (p.part != Part::kStep || p.key != key || p.is_aborted) return;
  handle(slot, MainThread{.is_waiting = true});
  if (p.is_alive) enter(slot, key, entry_of(p));
}

void ElasticWorld::order(std::size_t slot, AgreeOn action) {
  Process& p = processes_[slot];
  if (options_.bug == Bug::kPublishesBeforeVisible && p.machine->held().is_whole) {
    check_commit(slot, action.step, after(p.state, action.step, p.prepared.gradient), p.prepared);
  }
  const Key key{action.epoch, Part::kAgree, action.step, p.attempt};
  begin_part(p, key);
  if (options_.bug == Bug::kCommitsWithoutAgreement) {
    const Collective mine{.record = p.group, .entries = {Entry{.changes = action.changes}}};
    return tell(slot, random(0, 1), verdict(key, mine));
  }
  const bool is_donor = p.group.is_donor(p.id.identity);
  if (options_.bug == Bug::kHealsWithoutHash && !is_donor) action.state_hash = 0;
  enter(slot, key,
        {.gradient_hash = action.gradient_hash,
         .state_hash = action.state_hash,
         .stops = action.stops,
         .changes = action.changes});
}

void ElasticWorld::apply(std::size_t slot, const ApplyUpdate& action) {
  when_running(slot, random(2, 5), [this, slot, action] {
    Process& p = processes_[slot];
    if (p.prepared.step != action.step) return fail("it has not got the gradient that it applies");
    p.state = after(p.state, action.step, p.prepared.gradient);
    handle(slot, UpdateApplied{.epoch = action.epoch});
  });
}

// It takes some time until the part has ended here; its outcome may come before. What this member
// has already sent may be enough for the others, or not.
void ElasticWorld::abort(std::size_t slot) {
  Process& p = processes_[slot];
  if (p.part == Part::kNone) return;
  p.is_aborted = true;
  const Key key = p.key;
  const auto found = collectives_.find(key);
  const auto rank = p.group.rank_of(p.id.identity);
  if (found != collectives_.end() && rank && chance(0.5)) found->second.entries[*rank].reset();
  if (p.hangs && p.part == Part::kStep) return;
  when_running(slot, random(0, 5), [this, slot, key] {
    Process& q = processes_[slot];
    if (q.part == Part::kNone || q.key != key || !q.is_aborted) return;
    q.part = Part::kNone;
    handle(slot, PartFailed{.epoch = std::get<Epoch>(key)});
  });
}

void ElasticWorld::enter(std::size_t slot, const Key& key, const Entry& entry) {
  const Process& p = processes_[slot];
  const auto rank = p.group.rank_of(p.id.identity);
  if (!rank || p.group.epoch != std::get<Epoch>(key)) return fail("a collective without its group");
  Collective& all = collectives_[key];
  if (all.entries.empty()) {
    all.record = p.group;
    all.entries.resize(p.group.members.size());
  }
  if (*rank >= all.entries.size()) return fail("two groups of one epoch");
  all.entries[*rank] = entry;
  if (!std::ranges::all_of(all.entries, [](const auto& e) { return e.has_value(); })) return;
  const Collective done = std::move(all);
  collectives_.erase(key);
  complete(key, done);
}

void ElasticWorld::complete(const Key& key, const Collective& all) {
  const auto shared = std::make_shared<const Collective>(all);
  for (std::size_t rank = 0; rank < all.entries.size(); ++rank) {
    const Duration delay = chance(0.05) ? random(3, 60) : random(0.2, 3);
    at(delay, [this, key, shared, rank] { bring(key, shared, rank); });
  }
}

// Where a line is cut the outcome waits; where a member has ended it may never come.
void ElasticWorld::bring(const Key& key, const std::shared_ptr<const Collective>& all,
                         std::size_t rank) {
  const MemberId& id = all->record.members[rank].id;
  const std::size_t slot = slot_of(id.identity);
  const Process& p = processes_[slot];
  const bool is_awaited = p.is_alive && p.id == id && p.key == key;
  if (!is_awaited) return;
  bool is_cut = false, is_broken = false;
  for (const ElasticEntry& member : all->record.members) {
    const std::size_t other = slot_of(member.id.identity);
    is_cut |= cuts_[other][slot] > 0;
    is_broken |= !processes_[other].is_alive || processes_[other].id != member.id;
  }
  if (is_broken && chance(0.5)) return;
  if (is_cut || now_ < p.paused_until) {
    const Duration later = std::max<Duration>(p.paused_until - now_, std::chrono::milliseconds(20));
    return at(later, [this, key, all, rank] { bring(key, all, rank); });
  }
  conclude(slot, key, *all);
}

void ElasticWorld::conclude(std::size_t slot, const Key& key, const Collective& all) {
  Process& p = processes_[slot];
  if (p.part == Part::kNone || p.key != key) return;
  const Part part = std::exchange(p.part, Part::kNone);
  const auto epoch = std::get<Epoch>(key);
  if (part == Part::kGroup) {
    if (options_.averages) settle_average(p, all);
    return handle(slot, GroupStarted{.epoch = epoch});
  }
  if (part == Part::kAverage) return take_average(slot, key, all);
  if (part == Part::kAgree) return handle(slot, verdict(key, all));
  receive_step(p, key, all);
  // each has a gradient of its own where they average: it stands for the step of this group
  const std::uint64_t gradient =
      options_.averages ? mix(p.order.step) + epoch : p.prepared.gradient;
  handle(slot,
         StepReduced{.epoch = epoch, .step = p.order.step, .gradient_hash = told(gradient, slot)});
}

void ElasticWorld::receive_step(Process& p, const Key& key, const Collective& all) {
  const std::uint64_t step = std::get<2>(key);
  std::uint64_t gradient = mix(step);
  std::vector<SampleRange> ranges;
  for (std::size_t rank = 0; rank < all.entries.size(); ++rank) {
    const SampleRange& r = all.entries[rank]->samples;
    gradient =
        mix(gradient + slot_of(all.record.members[rank].id.identity) + r.first * 31 + r.count * 17);
    if (r.count > 0) ranges.push_back(r);
  }
  std::ranges::sort(ranges, {}, &SampleRange::first);
  std::uint64_t next = (step - 1) * kBatch;
  bool fits = true;
  for (const SampleRange& r : ranges) {
    fits &= r.first == next;
    next += r.count;
  }
  if (options_.averages) {
    check_histories(all);
    gradient = mix(gradient + slot_of(p.id.identity));
  }
  const bool may_flip = !is_benign_ && !is_calm_ && !options_.averages;
  if (may_flip && chance(0.0003)) {
    gradient ^= 1;
    ++counts_.flips;
  }
  p.prepared = {
      .step = step, .gradient = gradient, .has_all_samples = fits && next == step * kBatch};
  if (!p.order.receives || options_.averages) return;
  for (std::uint32_t i = 0; i < p.order.slices.count; ++i) {
    const std::uint32_t slice = p.order.slices.first + i;
    const std::string& donor = Healing::donor_of(p.group, slice, p.id.identity);
    if (p.group.part_of(donor) != p.group.part_of(p.id.identity)) {
      return fail("a slice of another part of the model");
    }
    p.state[slice] = all.entries[*p.group.rank_of(donor)]->state[slice];
    if (may_flip && chance(0.02)) {
      p.state[slice] ^= 1;
      ++counts_.failed_heals;
    }
  }
}

StepAgreed ElasticWorld::verdict(const Key& key, const Collective& all) {
  StepAgreed agreed{.epoch = std::get<Epoch>(key), .step = std::get<2>(key)};
  std::map<std::uint32_t, std::set<std::uint64_t>> gradients, states;  // by part
  for (std::size_t rank = 0; rank < all.entries.size(); ++rank) {
    const Entry& e = *all.entries[rank];
    const std::uint32_t part = all.record.members[rank].part;
    agreed.stops |= e.stops;
    agreed.changes |= e.changes;
    gradients[part].insert(e.gradient_hash);
    if (e.state_hash != 0) states[part].insert(e.state_hash);
  }
  const auto differ = [](const auto& it) { return it.second.size() > 1; };
  if (std::ranges::any_of(gradients, differ)) agreed.verdict = AgreeVerdict::kGradientsDiffer;
  if (std::ranges::any_of(states, differ)) agreed.verdict = AgreeVerdict::kStatesDiffer;
  return agreed;
}

}  // namespace stormo::protocol::test
