#include <stormo/protocol/elastic/elastic_member.h>

#include <algorithm>

namespace stormo::protocol {

ElasticMember::ElasticMember(ElasticOptions options)
    : options_(std::move(options)),
      held_{.step = options_.initial_step,
            .is_whole = options_.has_state,
            .state_hash = options_.initial_hash},
      hashed_step_(options_.initial_step),
      stop_after_(options_.last_step),
      watch_(options_.me, options_.watch),
      losses_(options_.losses) {}

std::vector<ElasticAction> ElasticMember::handle(const ElasticInput& input, TimePoint now) {
  actions_.clear();
  if (has_ended()) return {};
  now_ = now;
  watch_.advance(now);
  std::visit([&](const auto& it) { take(it); }, input);
  if (!has_ended()) advance();
  return std::exchange(actions_, {});
}

Standing ElasticMember::standing() const {
  switch (mode_) {
    case Mode::kRunning: return Standing::kRunning;
    case Mode::kRecovering: return is_at_rest_ ? Standing::kResting : Standing::kHalting;
    default: return Standing::kOutside;
  }
}

void ElasticMember::take(const ElasticHeard& heard) {
  std::visit([&](const auto& message) { take(message); }, heard.message);
}

// Whatever is of an older epoch changes nothing: its sender is told what it has missed.
void ElasticMember::take(const MemberStatus& status) {
  if (status.epoch > record_.epoch) {
    if (now_ >= next_read_) read_register();
    return;
  }
  if (status.epoch < record_.epoch) {
    if (mode_ != Mode::kOutside) send(status.from.identity, RecordNews{record_});
    return;
  }
  // whoever asks to be let in is told at once that it is heard
  is_news_ |= watch_.status_of(status.from) == nullptr;
  watch_.hear(status);
  if (!is_member(status.from)) return;
  hear_wish(status);
  for (const MemberId& id : status.dead) {
    if (is_member(id) && id != options_.me) watch_.bury(id);
  }
  if (status.stop_after != 0 && (stop_after_ == 0 || status.stop_after < stop_after_)) {
    stop_after_ = status.stop_after;
  }
  const bool halts = status.standing == Standing::kHalting || status.standing == Standing::kResting;
  if (halts && mode_ == Mode::kRunning) halt();
}

// The others hear of it at once: perhaps nobody else has seen it.
void ElasticMember::take(const ProcessEnded& ended) {
  is_news_ |= is_member(ended.id) && !watch_.is_dead(ended.id);
  watch_.bury(ended.id);
}

void ElasticMember::take(const MainThread& thread) {
  ++progress_;
  is_waiting_ = thread.is_waiting && mode_ == Mode::kRunning;
}

void ElasticMember::take(const StopAsked&) {
  stop_is_asked_ = true;
  if (mode_ == Mode::kOutside) end(false, "was asked to stop");
}

void ElasticMember::take(const LeaveAsked&) {
  is_news_ |= !std::exchange(leaves_, true);
  if (mode_ == Mode::kOutside) end(false, "has left", /*has_left=*/true);
}

void ElasticMember::advance() {
  const bool is_over = newer_ && !awaits_known_agreement();
  if (mode_ == Mode::kRunning && (is_over || (!reaches_stop() && is_any_lost()))) halt();
  if (is_left_behind()) {
    mode_ = Mode::kEnded;
    actions_.emplace_back(EndProcess{"ends: the others go on without it, and its step " +
                                     std::to_string(held_.step + 1) + " does not come to an end"});
    return;
  }
  if (mode_ == Mode::kRunning && part_ == Part::kStep) wish();
  if (mode_ == Mode::kRunning && part_ == Part::kNone) go_on();
  if (mode_ == Mode::kRecovering && part_ == Part::kNone) recover();
  if (mode_ == Mode::kOutside) {
    if (newer_) {
      follow_record();
    } else if (now_ >= next_read_) {
      read_register();
    }
  }
  if (mode_ == Mode::kRunning && part_ == Part::kNone) go_on();
  if (has_ended()) return;
  if (is_news_ || now_ >= next_beat_) tell_status();
  wakes_at_ = std::min(next_beat_, now_ + watch_.next_loss());
  if (ready_since_) {
    const Duration waited = now_ - *ready_since_;
    wakes_at_ = std::min(wakes_at_, *ready_since_ + (waited / options_.yield + 1) * options_.yield);
  }
}

// Everybody hears of it at once, and does the same.
void ElasticMember::halt() {
  const bool may_wait = part_ == Part::kGroup || part_ == Part::kStep || part_ == Part::kAgree;
  if (may_wait) actions_.emplace_back(AbortPart{record_.epoch});
  mode_ = Mode::kRecovering;
  halted_at_ = watch_.own_time();
  is_waiting_ = false;  // the abort ends what it waits in
  is_at_rest_ = false;
  is_news_ = true;
}

bool ElasticMember::is_left_behind() const {
  return mode_ == Mode::kRecovering && part_ != Part::kNone && newer_ &&
         !newer_->names(options_.me) && watch_.is_too_long(watch_.own_time() - halted_at_);
}

bool ElasticMember::is_any_lost() const {
  return std::ranges::any_of(record_.members, [&](const ElasticEntry& m) {
    return m.id != options_.me && watch_.is_lost(m.id);
  });
}

MemberStatus ElasticMember::status() const {
  MemberStatus status{.from = options_.me,
                      .epoch = record_.epoch,
                      .standing = standing(),
                      .held = held_,
                      .progress = progress_,
                      .is_waiting = is_waiting_,
                      .leaves = leaves_,
                      .stop_after = stop_after_,
                      .heard = watch_.heard(),
                      .dead = watch_.dead(),
                      .ready_group = ready_group_};
  const bool is_first = mode_ == Mode::kRunning && record_.members.front().id == options_.me;
  if (is_first) status.wish = wish_;
  if (mode_ == Mode::kOutside) {
    status.plan_hash = options_.plan_hash;
    status.address = options_.address;
    status.shares = options_.shares;
    status.part = options_.part;
  }
  return status;
}

void ElasticMember::tell_status() {
  is_news_ = false;
  next_beat_ = now_ + options_.watch.beat;
  send_to_all(status());
}

void ElasticMember::send_to_all(const ElasticMessage& message) {
  for (const ElasticEntry& member : record_.members) {
    if (member.id.identity != options_.me.identity) send(member.id.identity, message);
  }
  if (mode_ == Mode::kOutside) return;
  for (const MemberStatus* candidate : watch_.outside()) {
    send(candidate->from.identity, message);
  }
}

void ElasticMember::send(const std::string& to, ElasticMessage message) {
  actions_.emplace_back(SendMessage{.to = to, .message = std::move(message)});
}

void ElasticMember::end(bool is_failure, std::string why, bool has_left) {
  mode_ = Mode::kEnded;
  actions_.emplace_back(
      EndMember{.is_failure = is_failure, .why = std::move(why), .has_left = has_left});
}

}  // namespace stormo::protocol
