#include <fmt/format.h>
#include <stormo/base/check.h>
#include <stormo/base/units.h>
#include <stormo/transport/call/frame.h>
#include <stormo/transport/call/reply.h>
#include <stormo/transport/store/store_protocol.h>

#include <algorithm>

namespace stormo::transport {

void StoreState::open(SessionId session, TimePoint now) {
  const bool fresh = sessions_.try_emplace(session, Session{.silence = Silence(now)}).second;
  STORMO_CHECK(fresh, "a session was opened twice");
}

Status StoreState::receive(SessionId session, const StoreRequest& request, TimePoint now) {
  Session& s = sessions_.at(session);
  s.silence.hear(now);
  switch (request.op) {
    case StoreOp::kSet:
    case StoreOp::kSetIfAbsent:
    case StoreOp::kAppend: return on_set(session, request);
    case StoreOp::kGet: return on_get(session, request);
    case StoreOp::kCancel: forget(gets_, session, request.id); return {};
    case StoreOp::kWatch: return on_watch(session, request);
    case StoreOp::kWill: return on_will(session, request);
    case StoreOp::kBeat:
      s.note = request.value;
      s.silence.note_late(Duration(request.number));
      if (request.id != 0) answer(session, request.id, Code::kOk, {});
      return {};
    case StoreOp::kGoodbye:
      drop_will(session);
      answer(session, request.id, Code::kOk, {});
      return {};
    case StoreOp::kEraseIf:
      if (const auto found = values_.find(request.key);
          found != values_.end() && *found->second.value == request.value) {
        erase(request.key);
      }
      answer(session, request.id, Code::kOk, {});
      return {};
    case StoreOp::kErase:
      erase(request.key);
      answer(session, request.id, Code::kOk, {});
      return {};
  }
  return {Code::kCorrupt, "Store protocol: unknown operation"};
}

void StoreState::close(SessionId session, TimePoint) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  forget(gets_, session, {});
  forget(watches_, session, {});
  execute_will(session, "connection closed");
  sessions_.erase(found);
}

bool StoreState::is_judged(const Session& s) {
  return s.will && s.will->silence > Duration::zero();
}

void StoreState::tick(TimePoint now, const Runs& runs) {
  const Duration since_last_tick = last_tick_ ? now - *last_tick_ : Duration::zero();
  last_tick_ = now;
  for (auto& [id, s] : sessions_) {
    s.silence.note_own_pause(since_last_tick, now);
    if (!is_judged(s)) continue;
    const auto its_process_runs = [&runs, session = id] { return runs && runs(session); };
    if (s.silence.is_too_long(now, s.will->silence, its_process_runs)) {
      execute_will(id, "silent for " + format_duration(s.silence.so_far(now)));
    }
  }
}

TimePoint StoreState::wake_at() const {
  TimePoint at = TimePoint::max();
  for (const auto& [id, s] : sessions_) {
    if (is_judged(s)) at = std::min(at, s.silence.look_at(s.will->silence));
  }
  return at;
}

std::size_t StoreState::will_bytes(SessionId session) const {
  const std::optional<Will>& will = sessions_.at(session).will;
  return will ? will->key.size() + will->value.size() : 0;
}

void StoreState::drop_will(SessionId session) {
  charge(session, will_bytes(session), 0);
  sessions_.at(session).will.reset();
}

void StoreState::execute_will(SessionId id, std::string_view reason) {
  const Session& session = sessions_.at(id);
  if (!session.will) return;
  const Will will = *session.will;
  drop_will(id);
  std::string value = fmt::format("{}; {}", will.value, reason);
  if (!session.note.empty()) value += "; last reported: " + session.note;
  // A full Store is no reason to hide a death from those who have a value already.
  (void)set_if_absent(will.key, value);
}

Status StoreState::on_will(SessionId session, const StoreRequest& request) {
  const std::size_t before = will_bytes(session);
  const std::size_t after = request.key.size() + request.value.size();
  if (const Status room = check_room(session, before, before, after); !room.ok()) {
    answer(session, request.id, room.code(), room.message());
    return {};
  }
  charge(session, before, after);
  sessions_.at(session).will =
      Will{std::string(request.key), std::string(request.value), Duration(request.number)};
  answer(session, request.id, Code::kOk, {});
  return {};
}

/// Whether `added` bytes find room when `removed` go, of which `owned` are charged to `owner`.
Status StoreState::check_room(SessionId owner, std::size_t removed, std::size_t owned,
                              std::size_t added) const {
  if (total_bytes_ - removed + added > kMaxTotalBytes) {
    return {Code::kExhausted, fmt::format("the Store is full: {} keys, {}", values_.size(),
                                          format_bytes(total_bytes_))};
  }
  const auto found = sessions_.find(owner);
  if (found == sessions_.end() || found->second.bytes - owned + added <= kMaxSessionBytes) {
    return {};
  }
  return {Code::kExhausted,
          fmt::format("the Store holds {} of this rank already, at most {} are allowed; erase keys "
                      "that nobody needs any more",
                      format_bytes(found->second.bytes), format_bytes(kMaxSessionBytes))};
}

/// kHost, and whoever has left, pay nothing.
void StoreState::charge(SessionId owner, std::size_t removed, std::size_t added) {
  total_bytes_ = total_bytes_ - removed + added;
  if (const auto found = sessions_.find(owner); found != sessions_.end()) {
    found->second.bytes = found->second.bytes - removed + added;
  }
}

StoreState::Value StoreState::make_value(std::string_view text) const {
  *values_alive_ += text.size();
  return {new std::string(text), [alive = values_alive_](const std::string* value) {
            *alive -= value->size();
            delete value;
          }};
}

void StoreState::deliver(SessionId session, std::uint32_t id, const Value& value) {
  deliveries_.push_back({session, begin_of_frame(encode(Reply{.id = id}), value->size()), value});
}

Status StoreState::set(std::string_view key, std::string_view value) {
  return store(kHost, key, value);
}

Status StoreState::store(SessionId owner, std::string_view key, std::string_view text) {
  const auto found = values_.find(key);
  const bool fresh = found == values_.end();
  if (key.empty() || key.size() > kMaxKeyBytes || text.size() > kMaxValueBytes) {
    return invalid_argument(
        fmt::format("Store: a key has 1 to {} bytes and a value at most {}; these have {} and {}",
                    kMaxKeyBytes, kMaxValueBytes, key.size(), text.size()));
  }
  if (fresh && values_.size() >= kMaxKeys) {
    return {Code::kExhausted, fmt::format("the Store is full: {} keys", values_.size())};
  }
  const std::size_t removed = fresh ? 0 : key.size() + found->second.value->size();
  const bool own = !fresh && found->second.owner == owner;
  const std::size_t added = key.size() + text.size();
  STORMO_RETURN_IF_ERROR(check_room(owner, removed, own ? removed : 0, added));
  if (!fresh) erase(key);
  charge(owner, 0, added);
  value_bytes_ += text.size();
  const Value value = make_value(text);
  values_.insert_or_assign(std::string(key), Entry{value, owner});
  sets_.emplace_back(key, text);
  if (const auto waiting = gets_.find(key); waiting != gets_.end()) {
    for (const Wait& w : waiting->second) {
      --sessions_.at(w.session).num_waits;
      wait_bytes_ -= wait_bytes(key);
      deliver(w.session, w.id, value);
    }
    gets_.erase(waiting);
  }
  if (const auto watching = watches_.find(key); watching != watches_.end()) {
    for (const Wait& w : watching->second) deliver(w.session, w.id, value);
  }
  return {};
}

void StoreState::erase(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return;
  const std::size_t bytes = found->second.value->size();
  charge(found->second.owner, key.size() + bytes, 0);
  value_bytes_ -= bytes;
  values_.erase(found);
}

Result<bool> StoreState::set_if_absent(std::string_view key, std::string_view value) {
  if (values_.find(key) != values_.end()) return false;
  STORMO_RETURN_IF_ERROR(set(key, value));
  return true;
}

std::optional<std::string> StoreState::get(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return *found->second.value;
}

void StoreState::answer(SessionId session, std::uint32_t id, Code code, std::string_view text) {
  deliveries_.push_back({session, frame(encode(Reply{id, code, text})), nullptr});
}

Status StoreState::on_set(SessionId session, const StoreRequest& request) {
  const auto before = values_.find(request.key);
  const bool is_fresh = before == values_.end();
  if (is_fresh && request.op == StoreOp::kAppend && request.value.empty()) {
    answer(session, request.id, Code::kOk, {});
    return {};
  }
  if (is_fresh || request.op != StoreOp::kSetIfAbsent) {
    std::string whole;
    std::string_view value = request.value;
    if (!is_fresh && request.op == StoreOp::kAppend) {
      value = whole = *before->second.value + std::string(request.value);
    }
    const Status done = store(session, request.key, value);
    if (!done.ok()) {
      answer(session, request.id, done.code(), done.message());
      return {};
    }
  }
  if (request.op == StoreOp::kSet) {
    answer(session, request.id, Code::kOk, {});
  } else {
    deliver(session, request.id, values_.find(request.key)->second.value);
  }
  return {};
}

Status StoreState::on_get(SessionId session, const StoreRequest& request) {
  const auto found = values_.find(request.key);
  if (found == values_.end()) return add_wait(gets_, session, request);
  deliver(session, request.id, found->second.value);
  return {};
}

Status StoreState::on_watch(SessionId session, const StoreRequest& request) {
  STORMO_RETURN_IF_ERROR(add_wait(watches_, session, request));
  if (const auto found = values_.find(request.key); found != values_.end()) {
    deliver(session, request.id, found->second.value);
  }
  return {};
}

Status StoreState::add_wait(Waits& waits, SessionId session, const StoreRequest& request) {
  std::size_t& count = sessions_.at(session).num_waits;
  if (count >= kMaxWaits) {
    return {Code::kExhausted, fmt::format("Store: more than {} waiting gets and watches in one "
                                          "session",
                                          kMaxWaits)};
  }
  if (wait_bytes_ + wait_bytes(request.key) > kMaxWaitBytes) {
    return {Code::kExhausted, "Store: too many waiting gets and watches of all sessions"};
  }
  ++count;
  wait_bytes_ += wait_bytes(request.key);
  waits[std::string(request.key)].push_back({session, request.id});
  return {};
}

void StoreState::forget(Waits& waits, SessionId session, std::optional<std::uint32_t> id) {
  Session& s = sessions_.at(session);
  if (s.num_waits == 0) return;
  for (auto it = waits.begin(); it != waits.end();) {
    const std::size_t gone = std::erase_if(
        it->second, [&](const Wait& w) { return w.session == session && (!id || w.id == *id); });
    s.num_waits -= gone;
    wait_bytes_ -= gone * wait_bytes(it->first);
    it = it->second.empty() ? waits.erase(it) : std::next(it);
  }
}

}  // namespace stormo::transport
