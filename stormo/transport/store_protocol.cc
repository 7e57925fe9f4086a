#include <fmt/format.h>
#include <stormo/base/check.h>
#include <stormo/base/units.h>
#include <stormo/transport/store_protocol.h>

#include <algorithm>
#include <charconv>

namespace stormo::transport {

void StoreState::open(SessionId session, TimePoint now) {
  const bool fresh = sessions_.try_emplace(session, Session{now, {}, {}, 0}).second;
  STORMO_CHECK(fresh, "a session was opened twice");
}

Status StoreState::receive(SessionId session, const StoreRequest& request, TimePoint now) {
  Session& s = sessions_.at(session);
  s.last_heard = now;
  switch (request.op) {
    case StoreOp::kSet:
    case StoreOp::kSetIfAbsent: return on_set(session, request);
    case StoreOp::kGet: return on_get(session, request);
    case StoreOp::kCancel: forget(gets_, session, request.id); return {};
    case StoreOp::kAdd: return on_add(session, request);
    case StoreOp::kWatch: return on_watch(session, request);
    case StoreOp::kWill:
      s.will = Will{std::string(request.key), std::string(request.value), Duration(request.number)};
      return answer(session, request.id, Code::kOk, {});
    case StoreOp::kBeat: s.note = request.value; return {};
    case StoreOp::kGoodbye: s.will.reset(); return answer(session, request.id, Code::kOk, {});
    case StoreOp::kErase: erase(request.key); return answer(session, request.id, Code::kOk, {});
  }
  return {Code::kCorrupt, "Store protocol: unknown operation"};
}

void StoreState::close(SessionId session, TimePoint) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  forget(gets_, session, {});
  forget(watches_, session, {});
  execute_will(found->second, "connection closed");
  sessions_.erase(found);
}

void StoreState::tick(TimePoint now) {
  if (last_tick_ && now - *last_tick_ > kMaxTickGap) {
    const Duration own_pause = now - *last_tick_;
    for (auto& [id, s] : sessions_) s.last_heard = std::min(now, s.last_heard + own_pause);
  }
  last_tick_ = now;
  for (auto& [id, s] : sessions_) {
    if (!s.will || s.will->silence <= Duration::zero()) continue;
    const Duration silent = now - s.last_heard;
    if (silent > s.will->silence) execute_will(s, "silent for " + format_duration(silent));
  }
}

TimePoint StoreState::wake_at() const {
  TimePoint at = TimePoint::max();
  for (const auto& [id, s] : sessions_) {
    if (!s.will || s.will->silence <= Duration::zero()) continue;
    if (s.will->silence >= TimePoint::max() - s.last_heard) continue;
    at = std::min(at, s.last_heard + s.will->silence + Duration(1));
  }
  return at;
}

void StoreState::execute_will(Session& session, std::string_view reason) {
  if (!session.will) return;
  const Will will = *std::exchange(session.will, std::nullopt);
  std::string value = fmt::format("{}; {}", will.value, reason);
  if (!session.note.empty()) value += "; last reported: " + session.note;
  // A full Store is no reason to hide a death from those who have a value already.
  (void)set_if_absent(will.key, value);
}

Status StoreState::set(std::string_view key, std::string_view value) {
  const auto found = values_.find(key);
  const bool fresh = found == values_.end();
  const std::size_t removed = fresh ? 0 : found->second.size();
  const std::size_t total = total_bytes_ - removed + value.size() + (fresh ? key.size() : 0);
  if (key.empty() || key.size() > kMaxKeyBytes || value.size() > kMaxValueBytes) {
    return invalid_argument(
        fmt::format("Store: a key has 1 to {} bytes and a value at most {}; these have {} and {}",
                    kMaxKeyBytes, kMaxValueBytes, key.size(), value.size()));
  }
  if ((fresh && values_.size() >= kMaxKeys) || total > kMaxTotalBytes) {
    return {Code::kExhausted, fmt::format("the Store is full: {} keys, {}", values_.size(),
                                          format_bytes(total_bytes_))};
  }
  total_bytes_ = total;
  values_.insert_or_assign(std::string(key), std::string(value));
  sets_.emplace_back(key, value);
  if (const auto waiting = gets_.find(key); waiting != gets_.end()) {
    for (const Wait& w : waiting->second) {
      --sessions_.at(w.session).num_waits;
      deliveries_.push_back({w.session, encode(StoreReply{false, w.id, Code::kOk, value})});
    }
    gets_.erase(waiting);
  }
  if (const auto watching = watches_.find(key); watching != watches_.end()) {
    for (const Wait& w : watching->second) {
      deliveries_.push_back({w.session, encode(StoreReply{true, w.id, Code::kOk, value})});
    }
  }
  return {};
}

void StoreState::erase(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return;
  total_bytes_ -= found->first.size() + found->second.size();
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
  return found->second;
}

Status StoreState::answer(SessionId session, std::uint32_t id, Code code, std::string_view value) {
  deliveries_.push_back({session, encode(StoreReply{false, id, code, value})});
  return {};
}

Status StoreState::on_set(SessionId session, const StoreRequest& request) {
  const bool keep = request.op == StoreOp::kSetIfAbsent && values_.contains(request.key);
  if (!keep) {
    const Status done = set(request.key, request.value);
    if (!done.ok()) return answer(session, request.id, done.code(), done.message());
  }
  const bool tell = request.op == StoreOp::kSetIfAbsent;
  return answer(session, request.id, Code::kOk,
                tell ? std::string_view(values_.find(request.key)->second) : std::string_view());
}

Status StoreState::on_get(SessionId session, const StoreRequest& request) {
  const auto found = values_.find(request.key);
  if (found != values_.end()) return answer(session, request.id, Code::kOk, found->second);
  return add_wait(gets_, session, request);
}

Status StoreState::on_watch(SessionId session, const StoreRequest& request) {
  STORMO_RETURN_IF_ERROR(add_wait(watches_, session, request));
  if (const auto found = values_.find(request.key); found != values_.end()) {
    deliveries_.push_back(
        {session, encode(StoreReply{true, request.id, Code::kOk, found->second})});
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
  ++count;
  waits[std::string(request.key)].push_back({session, request.id});
  return {};
}

Status StoreState::on_add(SessionId session, const StoreRequest& request) {
  std::int64_t sum = 0;
  if (const auto found = values_.find(request.key); found != values_.end()) {
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum);
    if (error != std::errc{} || end != text.data() + text.size()) {
      return answer(session, request.id, Code::kInvalidArgument,
                    fmt::format("Store: '{}' is not a counter", request.key));
    }
  }
  if (__builtin_add_overflow(sum, request.number, &sum)) {
    return answer(session, request.id, Code::kInvalidArgument,
                  fmt::format("Store: counter '{}' overflows", request.key));
  }
  const std::string text = std::to_string(sum);
  const Status done = set(request.key, text);
  return answer(session, request.id, done.code(), done.ok() ? text : done.message());
}

void StoreState::forget(Waits& waits, SessionId session, std::optional<std::uint32_t> id) {
  Session& s = sessions_.at(session);
  if (s.num_waits == 0) return;
  for (auto it = waits.begin(); it != waits.end();) {
    s.num_waits -= std::erase_if(
        it->second, [&](const Wait& w) { return w.session == session && (!id || w.id == *id); });
    it = it->second.empty() ? waits.erase(it) : std::next(it);
  }
}

}  // namespace stormo::transport
