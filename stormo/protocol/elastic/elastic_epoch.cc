// From one epoch to the next: who goes on is decided by the register. The group with which others
// are let in is made before.
#include <stormo/protocol/elastic/elastic_member.h>

#include <algorithm>

namespace stormo::protocol {
namespace {

/// In an epoch: a number of eight bits tells their groups apart.
constexpr std::uint32_t kMostWishes = 255;

}  // namespace

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
    if (is_member(member.id)) continue;
    gone_.push_back({member.id, watch_.departure_of(member.id)});
    if (gone_.back().how != Departure::kLeft) losses_.note(member.id.identity, now_);
  }
  watch_.begin(record_);
  ready_since_.reset();
  has_group_ = changes_ = is_at_rest_ = false;
  wish_ = {};
  wishes_ = ready_group_ = 0;
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
  next->group = ready_group(*next);
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
  end(true,
      "all members that had the state, or a part of it, have ended; resume from the last "
      "checkpoint");
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
    all.push_back({.entry = entry_of(*candidate),
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

// All have to hear those that are let in, and they all. In an agreement a wish holds: others may
// begin with its group then.
void ElasticMember::wish() {
  if (record_.members.front().id != options_.me) return;
  const std::vector<const MemberStatus*> outside = watch_.outside();
  if (outside.empty() && wish_.epoch == 0) return;
  std::vector<ElasticEntry> members = record_.members;
  for (const MemberStatus* candidate : outside) {
    const auto hear_each_other = [&](const ElasticEntry& member) {
      const MemberStatus* const status = watch_.status_of(member.id);
      const bool is_heard = member.id == options_.me ||
                            (status != nullptr && contains(status->heard, candidate->from));
      return is_heard && contains(candidate->heard, member.id);
    };
    if (may_join(*candidate) && std::ranges::all_of(record_.members, hear_each_other)) {
      insert_on_host(entry_of(*candidate), members);
    }
  }
  if (members == (wish_.epoch == 0 ? record_.members : wish_.members)) return;
  if (wishes_ == kMostWishes) return;
  wish_ = {.epoch = record_.epoch + 1, .members = std::move(members), .group = ++wishes_};
  wished_at_ = now_;
  prepare();
}

void ElasticMember::hear_wish(const MemberStatus& status) {
  const bool is_new = status.wish.epoch == record_.epoch + 1 && status.wish.group > wish_.group;
  if (!is_new || status.from != record_.members.front().id) return;
  wish_ = status.wish;
  prepare();
}

// Nobody is let in as long as there is nobody.
void ElasticMember::prepare() {
  ready_group_ = 0;
  is_news_ = true;
  if (wish_.names(options_.me) && wish_.members.size() > record_.members.size()) {
    actions_.emplace_back(PrepareGroup{wish_});
  }
}

void ElasticMember::take(const GroupReady& ready) {
  if (wish_.epoch != ready.epoch || wish_.group != ready.group) return;
  ready_group_ = ready.group;
  is_news_ = true;
}

bool ElasticMember::is_ready(const ElasticEntry& member) const {
  if (member.id == options_.me) return ready_group_ == wish_.group;
  const MemberStatus* const status = watch_.status_of(member.id);
  return status != nullptr && status->epoch == record_.epoch && status->ready_group == wish_.group;
}

/// The next record says that all have agreed on this step: the outcome is on its way.
bool ElasticMember::awaits_known_agreement() const {
  return part_ == Part::kAgree && newer_->group != 0 && newer_->epoch == record_.epoch + 1 &&
         newer_->base_step == held_.prepared_step;
}

/// The group that these members have made, as far as the one knows who has wished it; else 0.
std::uint32_t ElasticMember::ready_group(const ElasticRecord& next) const {
  const bool is_wished = wish_.epoch == next.epoch && wish_.members == next.members &&
                         record_.members.front().id == options_.me;
  const bool all = is_wished && std::ranges::all_of(next.members, [&](const ElasticEntry& member) {
                     return is_ready(member);
                   });
  return all ? wish_.group : 0;
}

// All have prepared the step after which they change, so it is the base, whatever becomes of
// anybody: nobody has to rest before the record is written. It is on its way while they update.
void ElasticMember::write_wish(std::uint64_t step) {
  const bool is_writer = mode_ == Mode::kRunning && held_.is_whole && !leaves_ && !awaits_register_;
  if (!is_writer || ready_group(wish_) == 0) return;
  ElasticRecord next = wish_;
  next.base_step = step;
  next.plan_hash = record_.plan_hash;
  const bool all_are_whole = step > options_.healing.last_step(record_);
  for (const ElasticEntry& member : record_.members) {
    const std::string& identity = member.id.identity;
    if (all_are_whole || record_.is_donor(identity)) next.donors.push_back(identity);
  }
  awaits_register_ = true;
  actions_.emplace_back(SwapRecord{std::move(next)});
}

}  // namespace stormo::protocol
