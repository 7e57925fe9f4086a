// Who moves messages, and when: callers that wait, or else a thread for each way to peers.
#include <sched.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include <stormo/comm/mailbox/mailbox.h>
#include <stormo/comm/mailbox/slice.h>

namespace stormo::comm {
namespace {

/// A long message is copied in pieces: between them others have their turn.
constexpr std::size_t kPieceBytes = 1 << 20;
/// How long whoever moves messages gives way to a call that posts one.
constexpr Duration kGiveWay = std::chrono::microseconds(50);
/// How soon the thread goes on when no caller moves messages any more. Callers do not wake it: a
/// program that calls again and again would pay for this each time.
constexpr Duration kHandOver = std::chrono::milliseconds(1);
/// How often it looks; a caller that stays longer wakes it.
constexpr int kHandOverLooks = 50;

}  // namespace

/// One turn, or a sleep if there is nothing to do.
void Mailbox::progress(Lock& lock, Side& side, const Caller& caller, Deadline by) {
  Peers::Watch watch = side.peers->watch(caller.peer);
  if (parts_.health->failed()) return fail(lock, parts_.health->status());
  if (turn(lock, side, caller.own)) return give_way(lock);
  // since watch() nobody else had the lock
  ++side.sleepers;
  lock.unlock();
  side.peers->sleep(watch, !caller.is_thread, slice_of(by));
  lock.lock();
  --side.sleepers;
}

/// True if anything was moved.
bool Mailbox::turn(Lock& lock, Side& side, Id own) {
  std::vector<Completed> completed;
  Matching::Effects effects;
  const Result<bool> pulled = side.peers->pull(matching_, effects);
  Status outcome = pulled.ok() ? effects.mismatch : pulled.status();
  const bool has_ended = !effects.ended.empty();
  apply(effects, own, completed);
  const Result<bool> pushed = push(side, own, completed);
  if (outcome.ok()) outcome = pushed.status();
  const bool moved = has_ended || !outcome.ok() || *pulled || *pushed || !completed.empty();
  conclude(lock, std::move(completed), std::move(outcome));
  return (!is_failed_ && copy(lock, side, own)) || moved;
}

Result<bool> Mailbox::push(Side& side, Id own, std::vector<Completed>& completed) {
  Matching::Effects effects;
  Result<bool> moved = side.peers->push(matching_, effects);
  apply(effects, own, completed);
  return moved;
}

/// A piece of a message.
bool Mailbox::copy(Lock& lock, Side& side, Id own) {
  if (side.copies.empty()) return false;
  Copying next = side.copies.front();
  side.copies.pop_front();
  Pending& pending = pending_.at(next.fetch.receive);
  const std::size_t bytes = std::min(kPieceBytes, next.fetch.to.size() - next.offset);
  ++pending.copiers;
  lock.unlock();
  Status outcome =
      side.peers->bring(next.fetch, next.offset, next.fetch.to.subspan(next.offset, bytes));
  lock.lock();
  --pending.copiers;
  next.offset += bytes;
  // the sender may have given up meanwhile, and have changed the bytes
  if (parts_.health->failed()) {
    fail(lock, parts_.health->status());
  } else if (is_failed_) {  // whoever has found it ends this operation too
  } else if (outcome.code() == Code::kCancelled) {
    // nothing comes any more: no failure until somebody waits for it
  } else if (!outcome.ok()) {
    give_up(lock, Operation(pending.operation), std::move(outcome));
  } else if (next.offset < next.fetch.to.size()) {
    side.copies.push_back(std::move(next));
  } else {
    std::vector<Completed> completed;
    Matching::Effects effects;
    matching_.fetched(next.fetch, /*by_memory=*/true, effects);
    apply(effects, own, completed);
    outcome = push(side, own, completed).status();
    conclude(lock, std::move(completed), std::move(outcome));
  }
  return true;
}

void Mailbox::give_way(Lock& lock) {
  if (num_posting_ == 0) return;
  lock.unlock();
  const Deadline enough = Deadline::after(kGiveWay);
  while (num_posting_ > 0 && !enough.expired()) ::sched_yield();
  lock.lock();
}

/// A caller has what it waited for: others move the rest.
void Mailbox::leave(Lock& lock, Side& side) {
  if (is_failed_ || !is_busy(side)) return;
  if (side.callers == 0) leave_to_thread(lock, side);
  if (has_work(side)) wake(side);  // who sleeps does not know of it
}

void Mailbox::leave_to_thread(Lock& lock, Side& side) {
  if (is_stopping_ || is_failed_) return;
  if (side.is_resting) {
    side.needed.notify_one();
  } else if (!side.thread.joinable()) {
    try {
      side.thread = std::thread([this, &side] { serve(side); });
    } catch (const std::system_error& e) {
      give_up(lock, oldest(),
              {Code::kExhausted, std::string("a thread for messages: ") + e.what()});
    }
  }
}

void Mailbox::wake(Side& side) {
  if (side.sleepers > 0) side.peers->wake();
}

void Mailbox::serve(Side& side) {
  Lock lock(mutex_);
  int looks = 0;
  while (!is_stopping_) {
    if (side.callers == 0) looks = 0;
    if (is_failed_ || !is_busy(side) || looks == kHandOverLooks) {
      side.is_resting = true;
      side.needed.wait(lock);
      side.is_resting = false;
      looks = 0;
    } else if (side.callers > 0) {
      ++looks;
      side.needed.wait_for(lock, kHandOver);
    } else {
      progress(lock, side, {.is_thread = true}, Deadline::never());
    }
  }
}

Status Mailbox::flush(Deadline by) {
  Lock lock = lock_to_post();
  for (Side* side : {&host_, &network_}) {
    if (!side->peers) continue;
    ++side->callers;
    while (!is_failed_ && (side->sends > 0 || side->peers->is_busy()) && !by.expired()) {
      progress(lock, *side, {}, by);
    }
    --side->callers;
    leave(lock, *side);
  }
  if (parts_.health->failed()) return parts_.health->status();
  if (is_failed_) return {Code::kCancelled, "the group is about to fail"};
  for (const Side* side : {&host_, &network_}) {
    if (side->sends == 0 && side->peers && side->peers->is_busy()) {
      return {Code::kDeadlineExceeded, "peers have not taken all messages"};
    }
  }
  lock.unlock();
  for (Side* side : {&host_, &network_}) {
    if (side->peers) side->peers->settle(by);
  }
  return {};
}

}  // namespace stormo::comm
