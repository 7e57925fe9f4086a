#include <stormo/mpi/mpi_peers.h>

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include <stormo/mpi/pacing.h>

namespace stormo::mpi {

using comm::Matching;
using comm::MessageRecord;
using Kind = MessageRecord::Kind;

namespace {

/// So that others have their turn although a rank sends without end.
constexpr int kRecordsPerTurn = 64;

}  // namespace

MpiPeers::MpiPeers(Link& link, std::int64_t bytes_per_call)
    : link_(link), bytes_per_call_(bytes_per_call) {}

template <class Condition>
bool MpiPeers::wait_shortly(Condition&& holds) {
  const Deadline by = Deadline::after(Link::kPatience);
  Pacing pacing(link_.policy());
  while (!holds()) {
    if (by.expired()) return false;
    pacing.pause();
  }
  return true;
}

/// Of requests that nobody waits for: one that has failed has ended too.
template <class Entry>
void MpiPeers::forget_complete(std::list<Entry>& entries) {
  std::erase_if(entries, [this](Entry& e) {
    bool done = false;
    return !link_.test("MPI_Test", e.requests, done).ok() || done;
  });
}

MpiPeers::~MpiPeers() {
  abandon(/*offers=*/false);
  const auto is_done = [this] {
    forget_complete(sending_);
    forget_complete(arriving_);
    forget_complete(receiving_);
    forget_complete(left_);
    return sending_.empty() && arriving_.empty() && receiving_.empty() && left_.empty();
  };
  if (wait_shortly(is_done)) return;
  link_.library().abandon();
  // MPI may still use their records
  sending_.splice(sending_.end(), left_);
  new std::list<Sending>(std::move(sending_));    // NOLINT
  new std::list<Arriving>(std::move(arriving_));  // NOLINT
}

/// The mailbox moves nothing any more, and buffers of users are about to be used again.
void MpiPeers::abandon(bool /*offers*/) {
  if (std::exchange(is_abandoned_, true)) return;
  queued_.clear();
  for (Receiving& r : receiving_) link_.cancel(r.requests);
  for (auto s = sending_.begin(); s != sending_.end();) {
    const auto next = std::next(s);
    if (s->requests.size() > 1) left_.splice(left_.end(), sending_, s);
    s = next;
  }
  const bool done = wait_shortly([this] {
    forget_complete(receiving_);
    forget_complete(left_);
    return receiving_.empty() && left_.empty();
  });
  static_cast<void>(done);  // else it stays MPI's
}

Status MpiPeers::drain(Deadline by) {
  MPI_Request meet = MPI_REQUEST_NULL;  // of ranks that have nothing under way
  bool is_there = false, have_met = false;
  Pacing pacing(link_.policy());
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const bool more, accept());
    forget_complete(arriving_);
    forget_complete(sending_);
    if (have_met && !more && arriving_.empty()) return {};
    if (!is_there && sending_.empty()) {
      is_there = true;
      STORMO_RETURN_IF_ERROR(link_.library().call(
          "MPI_Ibarrier", [&] { return MPI_Ibarrier(link_.collectives(), &meet); }));
    }
    if (is_there) STORMO_RETURN_IF_ERROR(link_.test("MPI_Ibarrier", {&meet, 1}, have_met));
    if (more || !pacing.pause()) continue;
    link_.listen();
    if (!link_.health().failed() && !by.expired()) continue;
    if (is_there) link_.library().abandon();
    return link_.health().failed()
               ? link_.health().status()
               : Status(Code::kDeadlineExceeded, "not all ranks have ended their messages in time");
  }
}

Result<bool> MpiPeers::push(Matching& matching, Matching::Effects& out) {
  bool moved = !queued_.empty();
  for (; !queued_.empty(); queued_.pop_front()) {
    STORMO_RETURN_IF_ERROR(start(queued_.front(), matching, out));
  }
  for (auto s = sending_.begin(); s != sending_.end();) {
    bool done = false;
    STORMO_RETURN_IF_ERROR(link_.test("MPI_Isend", s->requests, done));
    if (!done) {
      ++s;
      continue;
    }
    if (s->send != 0) matching.sent(s->to, s->send, out);
    s = sending_.erase(s);
    moved = true;
  }
  if (moved) note_move();
  return moved;
}

/// A short payload is copied, so its send is complete: MPI may not send it before its receiver
/// looks for messages.
Status MpiPeers::start(const Matching::Outgoing& outgoing, Matching& matching,
                       Matching::Effects& out) {
  Sending& s = sending_.emplace_back();
  s.to = outgoing.to;
  const bool follows = outgoing.record.kind == Kind::kEager;
  const auto* const record = reinterpret_cast<const std::byte*>(&outgoing.record);
  s.record.assign(record, record + sizeof outgoing.record);
  if (follows) s.record.insert(s.record.end(), outgoing.payload.begin(), outgoing.payload.end());
  STORMO_RETURN_IF_ERROR(link_.library().call("MPI_Isend", [&] {
    return MPI_Isend(s.record.data(), static_cast<int>(s.record.size()), MPI_BYTE, outgoing.to,
                     kRecordTag, link_.messages(), &s.requests.emplace_back(MPI_REQUEST_NULL));
  }));
  if (follows) {
    matching.sent(outgoing.to, outgoing.send, out);
    return {};
  }
  s.send = outgoing.send;
  const std::span bytes(const_cast<std::byte*>(outgoing.payload.data()), outgoing.payload.size());
  return start_pieces(bytes, outgoing.to, /*sends=*/true, s.requests);
}

Status MpiPeers::start_pieces(std::span<std::byte> bytes, Rank peer, bool sends,
                              std::vector<MPI_Request>& requests) {
  while (!bytes.empty()) {
    const auto n = static_cast<int>(
        std::min<std::size_t>(bytes.size(), static_cast<std::size_t>(bytes_per_call_)));
    MPI_Request* const request = &requests.emplace_back(MPI_REQUEST_NULL);
    STORMO_RETURN_IF_ERROR(link_.library().call(sends ? "MPI_Isend" : "MPI_Irecv", [&] {
      return sends ? MPI_Isend(bytes.data(), n, MPI_BYTE, peer, kPayloadTag, link_.messages(),
                               request)
                   : MPI_Irecv(bytes.data(), n, MPI_BYTE, peer, kPayloadTag, link_.messages(),
                               request);
    }));
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Result<bool> MpiPeers::pull(Matching& matching, Matching::Effects& out) {
  STORMO_ASSIGN_OR_RETURN(bool moved, accept());
  if (!arriving_.empty()) {
    STORMO_ASSIGN_OR_RETURN(const bool taken, take_records(matching, out));
    moved |= taken;
  }
  for (auto r = receiving_.begin(); r != receiving_.end();) {
    bool done = false;
    STORMO_RETURN_IF_ERROR(link_.test("MPI_Irecv", r->requests, done));
    if (!done) {
      ++r;
      continue;
    }
    matching.fetched(r->what, /*by_memory=*/false, out);
    r = receiving_.erase(r);
    moved = true;
  }
  if (moved) note_move();
  if (!moved) link_.listen();
  return moved;
}

/// Begins to receive the records that have come. A record may be too long for MPI to have all of
/// it: the rest comes when its sender makes progress.
Result<bool> MpiPeers::accept() {
  int waiting = 1;
  bool any = false;
  for (int i = 0; i < kRecordsPerTurn && waiting != 0; ++i, any |= waiting != 0) {
    STORMO_RETURN_IF_ERROR(link_.library().call("MPI_Imrecv", [&] {
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      const int code =
          MPI_Improbe(MPI_ANY_SOURCE, kRecordTag, link_.messages(), &waiting, &message, &status);
      if (code != MPI_SUCCESS || waiting == 0) return code;
      int length = 0;
      MPI_Get_count(&status, MPI_BYTE, &length);
      Arriving& a = arriving_.emplace_back();
      a.from = status.MPI_SOURCE;
      a.record.resize(static_cast<std::size_t>(length));
      return MPI_Imrecv(a.record.data(), length, MPI_BYTE, &message,
                        &a.requests.emplace_back(MPI_REQUEST_NULL));
    }));
  }
  return any;
}

/// Those of one rank in its order.
Result<bool> MpiPeers::take_records(Matching& matching, Matching::Effects& out) {
  bool any = false;
  std::vector<bool> is_late(static_cast<std::size_t>(link_.size()));
  for (auto a = arriving_.begin(); a != arriving_.end();) {
    const auto from = static_cast<std::size_t>(a->from);
    bool done = false;
    if (!is_late[from]) STORMO_RETURN_IF_ERROR(link_.test("MPI_Imrecv", a->requests, done));
    if (!done) {
      is_late[from] = true;
      ++a;
      continue;
    }
    STORMO_RETURN_IF_ERROR(take(*a, matching, out));
    a = arriving_.erase(a);
    any = true;
  }
  return any;
}

Status MpiPeers::take(const Arriving& arrived, Matching& matching, Matching::Effects& out) {
  MessageRecord record;
  const std::size_t bytes = arrived.record.size();
  if (bytes >= sizeof record) std::memcpy(&record, arrived.record.data(), sizeof record);
  if (bytes != sizeof record + (record.kind == Kind::kEager ? record.bytes : 0)) {
    return {Code::kCorrupt, fmt::format("a record from rank {} of a wrong length", arrived.from)};
  }
  if (record.kind != Kind::kData) {
    const auto payload = std::span<const std::byte>(arrived.record).subspan(sizeof record);
    return matching.arrived(arrived.from, record, payload, out);
  }
  STORMO_ASSIGN_OR_RETURN(const Matching::Fetch what, matching.landing(arrived.from, record));
  Receiving& r = receiving_.emplace_back();
  r.what = what;
  return start_pieces(what.to, arrived.from, /*sends=*/false, r.requests);
}

void MpiPeers::note_move() {
  for (auto& since : asleep_since_) since.store(0, std::memory_order_relaxed);
}

/// Callers have pauses of their own: the thread may have waited long for something else.
void MpiPeers::sleep(Watch& watch, bool actively, Deadline by) {
  const TimePoint now = std::chrono::steady_clock::now();
  const TimePoint::rep ticks = now.time_since_epoch().count();
  TimePoint::rep since = 0;
  const bool is_first = asleep_since_[actively ? 1 : 0].compare_exchange_strong(since, ticks);
  const Duration waited = is_first ? Duration::zero() : Duration(ticks - since);
  const std::optional<Duration> pause = pause_after(waited, link_.policy());
  if (!pause) return;
  if (*pause == Duration::zero()) {
    ::sched_yield();
    return;
  }
  std::unique_lock lock(sleep_mutex_);
  woken_.wait_until(lock, std::min(now + *pause, by.when()),
                    [&] { return wakes_.load(std::memory_order_acquire) != watch.number; });
}

void MpiPeers::wake() {
  {
    const std::lock_guard lock(sleep_mutex_);
    wakes_.fetch_add(1, std::memory_order_release);
  }
  note_move();
  woken_.notify_all();
}

}  // namespace stormo::mpi
