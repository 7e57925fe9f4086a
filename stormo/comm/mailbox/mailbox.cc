#include <stormo/comm/mailbox/mailbox.h>

#include <algorithm>
#include <utility>

#include <stormo/comm/mailbox/slice.h>

namespace stormo::comm {
namespace {

/// How often it is looked whether the last call has ended.
constexpr Duration kEndLook = std::chrono::microseconds(100);

Status ended() { return {Code::kCancelled, "the group has ended"}; }

Matching::Send send_of(const Request& r, std::uint16_t channel) {
  const Buffer& b = r.in.front();
  return {.to = r.root,
          .channel = channel,
          .tag = r.tag,
          .dtype = b.dtype,
          .count = b.count,
          .bytes = {static_cast<const std::byte*>(b.data), b.bytes()}};
}

Matching::Receive receive_of(const Request& r, std::uint16_t channel) {
  const Buffer& b = r.in.front();
  return {.from = r.root,
          .channel = channel,
          .tag = r.tag,
          .dtype = b.dtype,
          .count = b.count,
          .bytes = {static_cast<std::byte*>(b.data), b.bytes()}};
}

}  // namespace

Mailbox::Mailbox(Parts parts)
    : parts_(std::move(parts)),
      matching_(parts_.size),
      ended_(static_cast<std::size_t>(parts_.size)) {
  host_.peers = std::move(parts_.host);
  network_.peers = std::move(parts_.network);
}

void Mailbox::end() {
  const Status cancelled = ended();
  {
    Lock lock(mutex_);
    if (std::exchange(is_stopping_, true)) return;
    fail(lock, cancelled);
    for (Side* side : {&host_, &network_}) {
      side->needed.notify_all();
      wake(*side);
    }
  }
  for (Side* side : {&host_, &network_}) {
    if (side->thread.joinable()) side->thread.join();
  }
  // what a caller was copying, which others may wait for inside
  for (;; std::this_thread::sleep_for(kEndLook)) {
    Lock lock(mutex_);
    fail(lock, cancelled);
    if (pending_.empty() && num_inside_ == 0) return;
  }
}

/// Whoever moves messages gives way.
Mailbox::Lock Mailbox::lock_to_post() {
  ++num_posting_;
  Lock lock(mutex_);
  --num_posting_;
  return lock;
}

Work Mailbox::submit(const Request& request, Channel channel) {
  Lock lock = lock_to_post();
  const Id id = next_id_++;
  auto handle = std::make_shared<PendingOperation>(*this, id);
  post(lock, id, {.handle = handle}, request, channel);
  for (Side* side : {&host_, &network_}) {
    if (pending_.contains(id) && may_bring(*side, request.root)) leave_to_thread(lock, *side);
  }
  return Work(std::move(handle));
}

Status Mailbox::run(const Request& request, Deadline by, Channel channel) {
  enter();
  Status outcome;
  {
    Lock lock = lock_to_post();
    const Id id = next_id_++;
    post(lock, id, {.outcome = &outcome}, request, channel);
    wait(lock, id, by);
    if (const auto late = pending_.find(id); late != pending_.end()) {
      give_up(lock, Operation(late->second.operation),
              {Code::kDeadlineExceeded, "the deadline of the call has passed"});
      wait(lock, id, Deadline::never());  // for who is copying it, or has found another failure
    }
  }
  --num_inside_;
  return outcome;
}

/// What can be sent at once is sent; so it may be complete then.
void Mailbox::post(Lock& lock, Id id, Pending pending, const Request& request, Channel channel) {
  const bool sends = request.kind == OperationKind::kSend;
  pending.operation = describe(request, parts_.size);
  pending.peer = request.root;
  pending.begin = std::chrono::steady_clock::now();
  if (!sends) pending.source = request.source;
  if (sends && !is_host(request.root)) pending.bytes_to_network = request.in.front().bytes();
  count(pending, 1);
  pending_.emplace_hint(pending_.end(), id, std::move(pending));
  if (is_failed_) {  // it is about to end, or has failed before
    if (parts_.health->failed()) {
      fail(lock, parts_.health->status());
    } else if (is_stopping_) {
      fail(lock, ended());
    }
    return;
  }
  Matching::Effects effects;
  std::vector<Completed> completed;
  Status outcome;
  if (sends && matching_.needs_credit(request.root, request.in.front().bytes())) {
    outcome = side_of(request.root).peers->pull(matching_, effects).status();
  }
  const auto number = static_cast<std::uint16_t>(channel);
  sends ? matching_.send(id, send_of(request, number), effects)
        : matching_.receive(id, receive_of(request, number), effects);
  if (outcome.ok()) outcome = effects.mismatch;
  const bool has_records = !effects.records.empty() || !effects.fetches.empty();
  apply(effects, id, completed);
  for (Side* side : {&host_, &network_}) {
    if (!has_records || !side->peers) continue;
    const Result<bool> moved = push(*side, id, completed);
    if (outcome.ok()) outcome = moved.status();
    if (has_work(*side)) wake(*side);  // who sleeps does not know of it
  }
  conclude(lock, std::move(completed), std::move(outcome));
  for (Side* side : {&host_, &network_}) {  // nobody waits for what is still to be sent
    if (has_work(*side) && !pending_.contains(id)) leave(lock, *side);
  }
}

/// Waits until the operation is complete, at most until `by`.
void Mailbox::wait(Lock& lock, Id id, Deadline by) {
  const auto entry = pending_.find(id);
  if (entry == pending_.end()) return;
  const Rank peer = entry->second.peer;
  const Operation operation = entry->second.operation;
  const bool both = peer == kAnyRank && host_.peers && network_.peers;  // whichever brings it
  Side& side = peer == kAnyRank ? (host_.peers ? host_ : network_) : side_of(peer);
  await(id, 1);
  side.callers += both ? 0 : 1;
  for (auto p = entry; p != pending_.end() && !by.expired(); p = pending_.find(id)) {
    if (const Status* const why = ended_for(p->second); why != nullptr && !is_failed_) {
      give_up(lock, operation, *why);
    } else if (both || is_failed_) {
      if (both) leave_to_thread(lock, host_);
      if (both) leave_to_thread(lock, network_);
      ++num_waiting_;
      changed_.wait_until(lock, slice_of(by).when());
      --num_waiting_;
    } else {
      progress(lock, side, {.own = id, .peer = peer}, by);
    }
  }
  await(id, -1);
  if (both) return;
  --side.callers;
  leave(lock, side);
}

/// Counts who waits for an operation, if it is still pending.
void Mailbox::await(Id id, int by) {
  const auto entry = pending_.find(id);
  if (entry == pending_.end()) return;
  entry->second.waiters += by;
  if (entry->second.waiters > 0) {
    awaited_.insert(id);
  } else {
    awaited_.erase(id);
  }
  show();
}

/// In the activity: of the operations that callers wait for, the oldest.
void Mailbox::show() {
  const Id oldest = awaited_.empty() ? 0 : *awaited_.begin();
  if (oldest == shown_) return;
  if (shown_ != 0) parts_.activity->end();
  shown_ = oldest;
  if (shown_ != 0) parts_.activity->begin(pending_.at(shown_).operation);
}

/// Why the rank takes part no more that a message needs, which is not under way.
const Status* Mailbox::ended_for(const Pending& pending) const {
  if (pending.copiers > 0 || num_ended_ == 0) return nullptr;
  if (pending.peer != kAnyRank) {
    const Status& why = ended_[static_cast<std::size_t>(pending.peer)];
    return why.ok() ? nullptr : &why;
  }
  if (num_ended_ < parts_.size - 1) return nullptr;
  return &*std::ranges::find_if(ended_, [](const Status& why) { return !why.ok(); });
}

void Mailbox::count(const Pending& pending, int by) {
  const bool sends = pending.operation.kind == OperationKind::kSend;
  for (Side* side : {&host_, &network_}) {
    if (!may_bring(*side, pending.peer)) continue;
    side->pending += by;
    side->sends += sends ? by : 0;
  }
}

/// What was found is queued for the peers, and what is complete goes to `completed`. `own`: what
/// the caller waits for.
void Mailbox::apply(Matching::Effects& effects, Id own, std::vector<Completed>& completed) {
  for (const Matching::Fetch& f : effects.fetches) {
    Side& side = side_of(f.from);
    if (side.peers->can_read(f)) {
      side.copies.push_back({f});
    } else {
      matching_.clear(f, effects);
    }
  }
  for (const Matching::Outgoing& o : effects.records) side_of(o.to).peers->put(o);
  for (const Matching::Completion& c : effects.completions) {
    const auto node = pending_.extract(c.operation);
    if (node.empty()) continue;  // it has failed before
    Pending& done = node.mapped();
    if (done.source != nullptr) *done.source = c.peer;
    bytes_sent_ += done.bytes_to_network;
    count(done, -1);
    if (awaited_.erase(c.operation) > 0) show();
    parts_.activity->note_progress();
    parts_.done(done.operation, done.begin);
    complete(done, Status(), done.waiters > (c.operation == own ? 1 : 0), completed);
  }
  for (Matching::Ended& e : effects.ended) {
    ended_[static_cast<std::size_t>(e.rank)] = std::move(e.why);
    ++num_ended_;
    if (!awaited_.empty()) wake(side_of(e.rank));
  }
}

void Mailbox::complete(Pending& pending, Status outcome, bool is_awaited,
                       std::vector<Completed>& completed) {
  if (pending.handle) {
    completed.push_back({std::move(pending.handle), std::move(outcome), is_awaited});
    return;
  }
  *pending.outcome = std::move(outcome);
  if (is_awaited) completed.push_back({nullptr, Status(), is_awaited});
}

/// Functions of the user may be called now, which may post operations.
void Mailbox::conclude(Lock& lock, std::vector<Completed> completed, Status outcome) {
  if (!completed.empty()) {
    lock.unlock();
    for (Completed& c : completed) {
      if (c.handle) c.handle->complete(std::move(c.outcome));
    }
    lock.lock();
    if (num_waiting_ > 0) changed_.notify_all();
    if (std::ranges::any_of(completed, &Completed::is_awaited)) {
      wake(host_);
      wake(network_);
    }
  }
  if (!outcome.ok()) give_up(lock, oldest(), std::move(outcome));
}

Operation Mailbox::oldest() const {
  return pending_.empty() ? Operation() : pending_.begin()->second.operation;
}

/// The group may have to tell other processes: not under the lock. Nothing is moved meanwhile.
void Mailbox::give_up(Lock& lock, const Operation& operation, Status outcome) {
  if (std::exchange(is_failed_, true)) return;
  lock.unlock();
  parts_.give_up(operation, std::move(outcome));
  lock.lock();
  fail(lock, parts_.health->status());
}

/// Ends what is pending.
void Mailbox::fail(Lock& lock, const Status& outcome) {
  is_failed_ = true;
  const bool offers = host_.sends > 0;
  for (Side* side : {&host_, &network_}) {
    if (side->peers) side->peers->abandon(offers);
    side->copies.clear();
  }
  std::vector<Completed> completed;
  for (auto p = pending_.begin(); p != pending_.end();) {
    Pending& pending = p->second;
    if (pending.copiers > 0) {
      ++p;
      continue;
    }
    count(pending, -1);
    awaited_.erase(p->first);
    complete(pending, outcome.within(to_text(pending.operation)), /*is_awaited=*/true, completed);
    p = pending_.erase(p);
  }
  if (shown_ != 0 && !awaited_.contains(shown_)) {
    shown_ = 0;  // what ends by a failure stays in the activity
    if (!parts_.health->failed()) parts_.activity->end();
  }
  conclude(lock, std::move(completed), Status());
}

void Mailbox::drive(std::uint64_t id, Deadline by) {
  {
    Lock lock = lock_to_post();
    wait(lock, id, by);
  }
  --num_inside_;
}

}  // namespace stormo::comm
