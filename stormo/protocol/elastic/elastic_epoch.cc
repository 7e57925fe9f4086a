// From one epoch to the next: who goes on is decided by the register.
#include <stormo/protocol/elastic/elastic_member.h>

#include <algorithm>

namespace stormo::protocol {

void ElasticMember::read_register() {
  if (awaits_register_) return;
  awaits_register_ = true;
  next_read_ = now_ + options_.register_retry;
  actions_.emplace_back(ReadRegister{});
}

void ElasticMember::take(const RegisterAnswer& answer) {
  awaits_register_ = false;
  if (!answer.present) {
    next_try_ = now_ + options_.register_retry;
    if (mode_ != Mode::kRunning) pause("the register of members is not reached");
    return;
  }
  if (answer.present->epoch <= record_.epoch) return;
  learn(*answer.present);
  for (const ElasticEntry& member : answer.present->members) {
    if (member.id != options_.me) send(member.id.identity, RecordNews{*answer.present});
  }
}

void ElasticMember::learn(const ElasticRecord& record) {
  if (record.epoch > record_.epoch && (!newer_ || record.epoch > newer_->epoch)) newer_ = record;
}

void ElasticMember::follow_record() {
  const ElasticRecord before = std::exchange(record_, *newer_);
  newer_.reset();
  for (const ElasticEntry& member : before.members) {
    const MemberStatus* const status = watch_.status_of(member.id);
    const bool has_left = status != nullptr && status->leaves;
    if (!is_member(member.id) && !has_left) losses_.note(member.id.identity, now_);
  }
  watch_.begin(record_);
  ready_since_.reset();
  has_group_ = changes_ = is_at_rest_ = false;
  disagreements_ = 0;
  is_news_ = true;
  if (is_member(options_.me)) {
    join_epoch();
  } else {
    stay_outside();
  }
}

void ElasticMember::join_epoch() {
  if (record_.plan_hash != options_.plan_hash) {
    return end(true,
               "the other members run another plan; start it with the same version, recipe "
               "and options");
  }
  mode_ = Mode::kRunning;
  if (std::exchange(is_paused_, false)) actions_.emplace_back(ResumeMember{});
  const bool is_donor = record_.is_donor(options_.me.identity);
  const bool has_state = held_.step == record_.base_step &&
                         (record_.state_hash == 0 || held_.state_hash == record_.state_hash);
  const bool has_gradient =
      held_.step + 1 == record_.base_step && held_.prepared_step == record_.base_step;
  if (is_donor && held_.is_whole && (has_state || has_gradient)) {
    if (has_state) held_.prepared_step = held_.prepared_hash = 0;
    return;
  }
  held_ = {.step = record_.base_step};
  hashed_step_.reset();
  if (is_donor) halt();  // the others rely on it
}

void ElasticMember::stay_outside() {
  mode_ = Mode::kOutside;
  held_.prepared_step = held_.prepared_hash = 0;
  next_read_ = now_ + options_.register_retry;
  const std::optional<std::size_t> rank = record_.rank_of(options_.me.identity);
  if (rank && record_.members[*rank].id.incarnation > options_.me.incarnation) {
    return end(false, "was started again");
  }
  if (leaves_) return end(false, "has left", /*has_left=*/true);
  pause("no member of epoch " + std::to_string(record_.epoch));
}

void ElasticMember::pause(std::string why) {
  if (!std::exchange(is_paused_, true)) actions_.emplace_back(PauseMember{std::move(why)});
}

Survivor ElasticMember::myself() const {
  return {.entry = record_.members[*record_.rank_of(options_.me.identity)],
          .held = held_,
          .heard = watch_.heard(),
          .leaves = leaves_};
}

// No part is in progress.
void ElasticMember::recover() {
  if (!is_at_rest_) {
    if (held_.is_whole && hashed_step_ != held_.step) return compute_hash();
    is_at_rest_ = true;
    is_news_ = true;
    next_read_ = now_ + options_.register_retry;
  }
  if (newer_) return follow_record();
  if (now_ >= next_read_) read_register();
  if (awaits_register_ || now_ < next_try_) return;
  std::optional<std::vector<Survivor>> chosen = chosen_survivors();
  if (!chosen) return;
  keep_enough(*chosen);
  std::optional<ElasticRecord> next = next_record(record_, *chosen);
  if (!next) return give_up(*chosen);
  if (next->members.size() < options_.min_ranks) {
    return pause("fewer than " + std::to_string(options_.min_ranks) + " members hear each other");
  }
  if (!is_its_turn(*chosen, *next)) return;
  awaits_register_ = true;
  actions_.emplace_back(SwapRecord{std::move(*next)});
}

// Whoever is outside now has another state, or an older one.
void ElasticMember::give_up(const std::vector<Survivor>& chosen) {
  const bool may_come = std::ranges::any_of(record_.members, [&](const ElasticEntry& m) {
    return !watch_.is_dead(m.id) && std::ranges::find(chosen, m.id, [](const Survivor& s) {
                                      return s.entry.id;
                                    }) == chosen.end();
  });
  if (may_come) return pause("no member that is left has the state");
  end(true, "all members that had the state have ended; resume from the last checkpoint");
}

/// All members that are not lost, once they rest, and those that want to join; else nothing.
std::optional<std::vector<Survivor>> ElasticMember::survivors() const {
  std::vector<Survivor> all;
  for (const ElasticEntry& member : record_.members) {
    if (member.id == options_.me) {
      all.push_back(myself());
      continue;
    }
    if (watch_.is_lost(member.id)) continue;
    const MemberStatus* const status = watch_.status_of(member.id);
    if (status == nullptr || status->standing != Standing::kResting) return {};
    all.push_back(
        {.entry = member, .held = status->held, .heard = status->heard, .leaves = status->leaves});
  }
  for (const MemberStatus* candidate : watch_.outside()) {
    if (!may_join(*candidate)) continue;
    all.push_back({.entry = {.id = candidate->from,
                             .address = candidate->address,
                             .shares = candidate->shares},
                   .held = candidate->held,
                   .heard = candidate->heard,
                   .is_member = false});
  }
  return all;
}

/// Those of them that hear each other; nothing if this member is not among them.
std::optional<std::vector<Survivor>> ElasticMember::chosen_survivors() {
  const std::optional<std::vector<Survivor>> all = survivors();
  if (!all) {
    ready_since_.reset();
    return {};
  }
  std::vector<Survivor> chosen;
  for (const std::size_t i : mutual_set(*all)) chosen.push_back((*all)[i]);
  const auto is_me = [&](const Survivor& s) { return s.entry.id == options_.me; };
  if (std::ranges::any_of(chosen, is_me)) return chosen;
  pause("other members hear each other, but not this one");
  return {};
}

// Of those that leave, the first ones stay as long as the others are too few.
void ElasticMember::keep_enough(std::vector<Survivor>& chosen) const {
  auto stay = static_cast<std::size_t>(std::ranges::count(chosen, false, &Survivor::leaves));
  for (Survivor& s : chosen) {
    if (stay >= options_.min_ranks) return;
    if (std::exchange(s.leaves, false)) ++stay;
  }
}

// Only a donor writes the record. So when it is written somebody lives who has the state.
bool ElasticMember::is_its_turn(const std::vector<Survivor>& chosen, const ElasticRecord& next) {
  if (!ready_since_) ready_since_ = now_;
  const auto mine = std::ranges::find(next.donors, options_.me.identity);
  if (mine == next.donors.end()) return false;
  const auto stay = std::ranges::count_if(chosen, &Survivor::is_member);
  const auto ended = std::ranges::count_if(
      record_.members, [&](const ElasticEntry& m) { return watch_.is_dead(m.id); });
  const std::ptrdiff_t vanished = std::ssize(record_.members) - stay - ended;
  // the others may be more, and go first
  const bool may_be_fewer = vanished > 0 && 2 * vanished >= std::ssize(record_.members);
  // the same ones again, after an epoch without a step
  const bool is_in_vain = stay == std::ssize(record_.members) && stay == std::ssize(chosen) &&
                          held_.step == record_.base_step;
  const auto before = std::distance(next.donors.begin(), mine);
  const std::ptrdiff_t turns = before + (may_be_fewer || is_in_vain ? 1 : 0);
  return now_ - *ready_since_ >= options_.yield * turns;
}

bool ElasticMember::may_join(const MemberStatus& candidate) const {
  return candidate.standing == Standing::kOutside && !candidate.leaves &&
         candidate.plan_hash == record_.plan_hash &&
         losses_.may_return(candidate.from.identity, now_);
}

}  // namespace stormo::protocol
