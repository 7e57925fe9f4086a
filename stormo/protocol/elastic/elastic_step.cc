// The parts of a step: an order follows on the outcome of the one before.
#include <stormo/protocol/elastic/elastic_member.h>

#include <algorithm>

namespace stormo::protocol {

bool ElasticMember::is_outcome(Epoch epoch, Part part) {
  if (epoch != record_.epoch || part_ != part) return false;
  part_ = Part::kNone;
  ++progress_;
  is_waiting_ = false;
  return true;
}

void ElasticMember::take(const PartFailed& failed) {
  const bool is_mine = is_outcome(failed.epoch, Part::kGroup) ||
                       is_outcome(failed.epoch, Part::kStep) ||
                       is_outcome(failed.epoch, Part::kAgree);
  if (!is_mine) return;
  if (!failed.blamed.empty()) watch_.blame(failed.blamed);
  if (mode_ == Mode::kRunning) halt();
}

void ElasticMember::take(const GroupStarted& started) {
  if (!is_outcome(started.epoch, Part::kGroup)) return;
  has_group_ = true;
  gone_.clear();
}

void ElasticMember::take(const StepReduced& reduced) {
  if (reduced.step != held_.step + 1 || !is_outcome(reduced.epoch, Part::kStep)) return;
  held_.prepared_step = reduced.step;
  held_.prepared_hash = reduced.gradient_hash;
  if (mode_ == Mode::kRunning) agree();
}

void ElasticMember::take(const StepAgreed& agreed) {
  if (agreed.step != held_.step + 1 || !is_outcome(agreed.epoch, Part::kAgree)) return;
  if (agreed.verdict == AgreeVerdict::kCommit) {
    disagreements_ = 0;
    changes_ = agreed.changes;
    if (agreed.stops) stop_after_ = agreed.step;
    // its state was equal to the donors' before this step
    const bool is_compared = agreed.step == options_.healing.last_step(record_) + 1;
    held_.is_whole |= Healing::is_needed(record_) && is_compared;
    if (agreed.changes && !agreed.stops) write_wish(agreed.step);
    watch_.note_step(watch_.own_time() - step_began_);
    part_ = Part::kUpdate;
    actions_.emplace_back(ApplyUpdate{.epoch = record_.epoch, .step = agreed.step});
    return;
  }
  held_.prepared_step = held_.prepared_hash = 0;
  if (mode_ != Mode::kRunning) return;
  if (agreed.verdict == AgreeVerdict::kStatesDiffer) {
    halt();
  } else if (++disagreements_ >= options_.max_disagreements) {
    end(true, "the members' gradients of step " + std::to_string(agreed.step) +
                  " differ whenever it is done: one of them computes or receives wrong bits");
  }
}

void ElasticMember::take(const UpdateApplied& applied) {
  if (!is_outcome(applied.epoch, Part::kUpdate)) return;
  held_.step = held_.prepared_step;
  held_.gradient_hash = held_.prepared_hash;
  held_.prepared_step = held_.prepared_hash = 0;
  if (held_.is_whole) {
    actions_.emplace_back(StepCommitted{.epoch = record_.epoch, .step = held_.step});
  }
  is_news_ |= reaches_stop();
}

void ElasticMember::take(const StateHashed& hashed) {
  if (!is_outcome(hashed.epoch, Part::kHash)) return;
  held_.state_hash = hashed.hash;
  hashed_step_ = held_.step;
  const bool is_base = mode_ == Mode::kRunning && held_.step == record_.base_step;
  if (is_base && record_.state_hash != 0 && record_.state_hash != hashed.hash) {
    held_.is_whole = false;
    halt();
  }
}

void ElasticMember::go_on() {
  if (held_.is_whole && held_.step < record_.base_step) {
    part_ = Part::kUpdate;
    actions_.emplace_back(ApplyUpdate{.epoch = record_.epoch, .step = record_.base_step});
  } else if (reaches_stop()) {
    close();
  } else if (is_hash_due()) {
    compute_hash();
  } else if (!has_group_) {
    part_ = Part::kGroup;
    is_waiting_ = true;
    actions_.emplace_back(StartGroup{.record = record_, .gone = gone_});
  } else if (changes_) {
    halt();
  } else {
    run_step();
  }
}

void ElasticMember::run_step() {
  const std::uint64_t step = held_.step + 1;
  const std::size_t rank = *record_.rank_of(options_.me.identity);
  const Healing& healing = options_.healing;
  RunStep order{.epoch = record_.epoch,
                .step = step,
                .batch = batch_of(step, options_.global_batch),
                .slices = healing.slices_of(record_, step)};
  order.part = part_of(order.batch, record_, rank, healing.is_healing(record_, step));
  order.receives = order.slices.count > 0 && !record_.is_donor(options_.me.identity);
  part_ = Part::kStep;
  step_began_ = watch_.own_time();
  actions_.emplace_back(order);
}

void ElasticMember::agree() {
  part_ = Part::kAgree;
  is_waiting_ = true;
  actions_.emplace_back(AgreeOn{.epoch = record_.epoch,
                                .step = held_.prepared_step,
                                .gradient_hash = held_.prepared_hash,
                                .state_hash = hashed_step_ == held_.step ? held_.state_hash : 0,
                                .stops = stop_is_asked_ || all_leave(),
                                .changes = wants_change()});
}

void ElasticMember::compute_hash() {
  part_ = Part::kHash;
  actions_.emplace_back(HashState{.epoch = record_.epoch, .step = held_.step});
}

// The base, where it was reached by a gradient; and a state that was received.
bool ElasticMember::is_hash_due() const {
  if (hashed_step_ == held_.step) return false;
  if (held_.is_whole && held_.step == record_.base_step) return true;
  return Healing::is_needed(record_) && held_.step == options_.healing.last_step(record_);
}

// Nobody ends before all have the last step: until then what it has may be asked for.
void ElasticMember::close() {
  for (const ElasticEntry& member : record_.members) {
    if (member.id == options_.me || watch_.is_lost(member.id)) continue;
    const MemberStatus* const status = watch_.status_of(member.id);
    if (status == nullptr || status->held.step < stop_after_) return;
  }
  if (is_news_) tell_status();
  end(false, "done");
}

// Only the first member lets others in, when all have made the group with them. Another epoch would
// begin with the state anew for whoever is getting it.
bool ElasticMember::wants_change() const {
  if (may_leave()) return true;
  if (record_.members.front().id != options_.me) return false;
  if (held_.step < options_.healing.last_step(record_)) return false;
  if (wish_.members.size() <= record_.members.size()) return false;
  return ready_group(wish_) != 0 || now_ - wished_at_ >= options_.prepare;
}

// Else there would be an epoch after each step, and nobody would ever get the state.
bool ElasticMember::may_leave() const {
  if (!leaves_ || record_.members.size() <= options_.min_ranks) return false;
  return std::ranges::any_of(record_.members, [&](const ElasticEntry& m) {
    const MemberStatus* const status = watch_.status_of(m.id);
    if (m.id == options_.me || m.part != options_.part) return false;
    if (status == nullptr) return record_.is_donor(m.id.identity);
    return status->held.is_whole && !status->leaves;
  });
}

bool ElasticMember::all_leave() const {
  return leaves_ && std::ranges::all_of(record_.members, [&](const ElasticEntry& m) {
           const MemberStatus* const status = watch_.status_of(m.id);
           return m.id == options_.me || (status != nullptr && status->leaves);
         });
}

}  // namespace stormo::protocol
