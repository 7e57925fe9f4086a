// What fails in an ElasticWorld, and what must hold all the same.
#include <algorithm>
#include <cmath>

#include "tests/unit/protocol/elastic_world.h"

namespace stormo::protocol::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

}  // namespace

void ElasticWorld::plan_fault() {
  const double u = static_cast<double>((random_() >> 11) + 1) * 0x1.0p-53;
  at(Duration(static_cast<std::int64_t>(-std::log(u) * fault_every_s_ * 1e9)), [this] {
    if (is_calm_) return;
    cause_fault();
    plan_fault();
  });
}

void ElasticWorld::cause_fault() {
  const std::size_t slot = below(processes_.size());
  if (!processes_[slot].is_alive) return;
  ++faults_;
  // limit: silence - 3 beats, less what a message takes
  if (is_benign_) return chance(0.1) ? freeze() : pause(slot, random(50, 1'100));
  const std::size_t what = below(loses_messages_ ? 20 : 10);
  if (what < 5) {
    kill(slot);
    if (what == 0) {
      ++faults_;  // perhaps only this one has seen the other's end
      kill(below(processes_.size()));
    }
  } else if (what < 7) {
    pause(slot, random(50, 1'100));
  } else if (what < 8) {
    pause(slot, random(1'500, 6'000));
  } else if (what < 9) {
    hang(slot);
  } else if (what < 10) {
    if (!may_lose(slot)) return;
    ++counts_.leaves;
    processes_[slot].is_to_leave = true;
    tell(slot, Duration(0), LeaveAsked{});
  } else {
    cause_network_fault(slot);
  }
}

void ElasticWorld::cause_network_fault(std::size_t slot) {
  const std::size_t other = below(processes_.size());
  switch (below(5)) {
    case 0: return other == slot ? void() : cut(slot, other, random(500, 6'000));
    case 1: return other == slot ? void() : flap(slot, other, 8);
    case 2: return lose_register_host();
    default: return partition();
  }
}

/// Whether the job has the state without this one: now, and after whatever is on its way to the
/// register.
bool ElasticWorld::may_lose(std::size_t slot) const {
  return has_other_holder(register_, slot) && std::ranges::all_of(proposals_, [&](const auto& it) {
           return has_other_holder(it.second, slot);
         });
}

bool ElasticWorld::has_other_holder(const ElasticRecord& record, std::size_t slot) const {
  for (std::size_t s = 0; s < processes_.size(); ++s) {
    const Process& p = processes_[s];
    const bool is_other = s != slot && part_of(s) == part_of(slot);
    if (!is_other || !p.is_alive || p.hangs || !record.names(p.id)) continue;
    const bool is_in = p.machine->epoch() == record.epoch;
    if (p.machine->held().is_whole && (is_in || record.is_donor(p.id.identity))) return true;
  }
  return false;
}

bool ElasticWorld::all_are_to_leave() const {
  return std::ranges::all_of(register_.members, [this](const ElasticEntry& m) {
    const Process& p = processes_[slot_of(m.id.identity)];
    return p.id == m.id && p.is_to_leave;
  });
}

void ElasticWorld::end_process(std::size_t slot) {
  processes_[slot].is_alive = false;
  const MemberId id = processes_[slot].id;
  // at least one sees it; often no other does, who then has to be told
  std::vector<std::size_t> alive;
  for (std::size_t s = 0; s < processes_.size(); ++s) {
    if (processes_[s].is_alive) alive.push_back(s);
  }
  if (alive.empty()) return;
  const std::size_t sure = alive[below(alive.size())];
  const double seen = chance(0.5) ? 0 : 0.8;
  for (const std::size_t s : alive) {
    if (s != sure && !chance(seen)) continue;
    if (cuts_[slot][s] == 0) tell(s, random(1, 30), ProcessEnded{id});
  }
}

void ElasticWorld::kill(std::size_t slot) {
  if (!processes_[slot].is_alive || !may_lose(slot)) return;
  ++counts_.kills;
  if (is_quiet()) expect_recovery();
  // one that is no member may be let in by those that have not seen its end
  if (!register_.names(processes_[slot].id)) faults_end_ = std::max(faults_end_, now_);
  end_process(slot);
  at(random(1'200, 4'000), [this, slot] { start(slot); });
}

/// Nothing has failed for some time, and all that live are members.
bool ElasticWorld::is_quiet() const {
  if (loses_messages_ || is_calm_ || now_ < faults_end_ + seconds(3)) return false;
  std::size_t members = 0;
  for (const Process& p : processes_) {
    if (!p.is_alive) continue;
    ++members;
    const bool is_well = p.machine->epoch() == register_.epoch && p.machine->held().is_whole &&
                         p.machine->standing() == Standing::kRunning && !p.hangs;
    if (!is_well || !register_.names(p.id)) return false;
  }
  return members == register_.members.size() && members > std::max<std::size_t>(2, min_ranks_);
}

/// A member is lost, and another one has seen that.
void ElasticWorld::expect_recovery() {
  at(milliseconds(1'000), [this, faults = faults_, epoch = register_.epoch] {
    if (faults != faults_ || is_calm_) return;
    if (last_commit_epoch_ <= epoch) return fail("a lost member was seen, and the others wait");
    ++counts_.fast_recoveries;
  });
}

void ElasticWorld::pause(std::size_t slot, Duration length) {
  Process& p = processes_[slot];
  if (!p.is_alive || now_ < p.paused_until) return;
  ++counts_.pauses;
  p.paused_at = now_;
  p.paused_until = now_ + length;
  faults_end_ = std::max(faults_end_, p.paused_until);
  const std::uint64_t incarnation = p.id.incarnation;
  at(length, [this, slot, incarnation] { resume(slot, incarnation); });
}

/// All are stopped at once, for any time: a machine that is suspended, a group that is frozen.
void ElasticWorld::freeze() {
  if (now_ < next_freeze_) return;
  ++counts_.freezes;
  next_freeze_ = now_ + seconds(30);
  const Duration length = random(100, 20'000);
  for (std::size_t slot = 0; slot < processes_.size(); ++slot) {
    Process& p = processes_[slot];
    if (!p.is_alive) continue;
    if (now_ >= p.paused_until) p.paused_at = now_;
    p.paused_until = now_ + length + random(0, 50);
    const std::uint64_t incarnation = p.id.incarnation;
    at(p.paused_until - now_, [this, slot, incarnation] { resume(slot, incarnation); });
  }
}

void ElasticWorld::hang(std::size_t slot) {
  Process& p = processes_[slot];
  if (p.hangs || !register_.names(p.id) || !may_lose(slot)) return;
  ++counts_.hangs;
  p.hangs = true;
  faults_end_ = std::max(faults_end_, now_ + seconds(30));
  look_after_hung(slot, p.id.incarnation, 60);
}

/// Whoever is thrown out because it hangs ends itself. After a minute a person looks.
void ElasticWorld::look_after_hung(std::size_t slot, std::uint64_t incarnation, int checks) {
  at(seconds(1), [this, slot, incarnation, checks] {
    Process& p = processes_[slot];
    if (!p.is_alive || p.id.incarnation != incarnation) return;
    if (checks > 0 && !is_calm_) {
      return look_after_hung(slot, incarnation, checks - 1);
    }
    if (may_lose(slot) || !register_.names(p.id)) {
      end_process(slot);
      return at(random(300, 3'000), [this, slot] { start(slot); });
    }
    // the only one that has the state comes to itself
    p.hangs = false;
    if (p.part == Part::kStep) p.is_aborted ? abort(slot) : enter_step(slot, p.key);
  });
}

void ElasticWorld::cut(std::size_t from, std::size_t to, Duration length) {
  ++counts_.cuts;
  ++cuts_[from][to];
  faults_end_ = std::max(faults_end_, now_ + length);
  if (chance(0.3)) at(random(100, 3'000), [this, from, to] { break_connection(from, to); });
  at(length, [this, from, to] { cuts_[from][to] = std::max(0, cuts_[from][to] - 1); });
}

/// The kernel of `to` gives up its connection to `from`.
void ElasticWorld::break_connection(std::size_t from, std::size_t to) {
  Process& p = processes_[to];
  const bool is_cut = cuts_[from][to] > 0;
  if (!is_cut || !p.is_alive || p.hangs || p.part == Part::kNone || now_ < p.paused_until) return;
  if (!p.group.names(processes_[from].id)) return;
  ++counts_.broken;
  p.part = Part::kNone;
  const auto epoch = std::get<Epoch>(p.key);
  handle(to, PartFailed{.epoch = epoch, .blamed = processes_[from].id.identity});
}

void ElasticWorld::partition() {
  std::vector<std::size_t> order(processes_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::shuffle(order, random_);
  const std::size_t size = 1 + below(order.size() / 2);
  const Duration length = random(500, 7'000);
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = size; j < order.size(); ++j) {
      cut(order[i], order[j], length);
      cut(order[j], order[i], length);
    }
  }
}

void ElasticWorld::flap(std::size_t a, std::size_t b, int times) {
  if (times == 0 || is_calm_) return;
  cut(a, b, seconds(1));
  cut(b, a, seconds(1));
  at(seconds(2), [this, a, b, times] { flap(a, b, times - 1); });
}

// For some time there may be no majority.
void ElasticWorld::lose_register_host() {
  const std::size_t host = below(register_is_up_.size());
  ++counts_.register_losses;
  register_is_up_[host] = false;
  const Duration length = random(1'000, 8'000);
  faults_end_ = std::max(faults_end_, now_ + length);
  at(length, [this, host] { register_is_up_[host] = true; });
}

void ElasticWorld::calm_down() {
  is_calm_ = true;
  last_commit_ = now_;
  for (const Process& p : processes_) last_commit_ = std::max(last_commit_, p.paused_until);
  for (std::vector<int>& from : cuts_) from.assign(from.size(), 0);
  register_is_up_ = {true, true, true};
}

void ElasticWorld::check_record(const ElasticRecord& next) {
  const std::uint64_t committed = lineage_.size() - 1;
  if (next.base_step < committed) return fail("a committed step is lost");
  if (next.base_step > committed + 1) return fail("a step is left out");
  if (next.base_step == committed + 1) ++counts_.prepared_bases;
  if (next.state_hash != 0 && next.state_hash != lineage_[next.base_step][0]) {
    return fail("the base is of another lineage");
  }
  if (is_benign_) return fail("a pause below the limit has changed the members");
  if (next.members.size() < min_ranks_) return fail("fewer members than there have to be");
  for (const ElasticEntry& member : next.members) {
    const Process& p = processes_[slot_of(member.id.identity)];
    if (p.id == member.id && register_.names(p.id) && p.started > next.base_step + 1) {
      return fail("a member redoes more than one step");
    }
  }
}

void ElasticWorld::check_commit(std::size_t slot, std::uint64_t step, const State& state,
                                const Prepared& prepared) {
  const Process& p = processes_[slot];
  const std::uint64_t hash = state_hash(p, state, step);
  if (step > lineage_.size()) return fail("a step is committed before the one before it");
  if (step == lineage_.size()) {
    lineage_.emplace_back();
    last_commit_ = std::max(last_commit_, now_);
    last_commit_epoch_ = std::max(last_commit_epoch_, p.machine->epoch());
  }
  const auto [known, is_first] = lineage_[step].emplace(part_of(slot), hash);
  if (!is_first && known->second != hash) {
    return fail("a step is committed in two ways: " + std::to_string(step));
  }
  if (prepared.step != step || !prepared.has_all_samples) {
    return fail("a step has not got each of its samples once: " + std::to_string(step));
  }
  const bool was_healed = !p.group.is_donor(p.id.identity);
  counts_.healed += was_healed && step == healing().last_step(p.group) + 1 ? 1 : 0;
}

}  // namespace stormo::protocol::test
