#include <stormo/server/ledger/shared_ledger.h>

#include <algorithm>
#include <limits>
#include <new>
#include <string>

#include <stormo/protocol/server/shard_state.h>
#include <stormo/server/intervals.h>

namespace stormo::server {
namespace {

constexpr std::uint64_t kMostSteps = std::numeric_limits<std::uint32_t>::max();

/// A share in one word.
struct Share {
  std::uint64_t begin = 0, end = 0;

  static Share of(std::uint64_t word) { return {word & kMostSteps, word >> 32}; }
  std::uint64_t word() const { return end << 32 | begin; }
  std::uint64_t left() const { return end - begin; }
};

}  // namespace

std::uint64_t SharedLedger::pack(const StepTask& task) {
  return static_cast<std::uint64_t>(task.part + 1) << kPartShift | task.step;
}

StepTask SharedLedger::unpack(std::uint64_t word) {
  return {.part = static_cast<int>(word >> kPartShift) - 1,
          .step = word & ((std::uint64_t{1} << kPartShift) - 1)};
}

std::size_t SharedLedger::bytes(int workers) {
  return sizeof(Head) + static_cast<std::size_t>(workers) * sizeof(Entry) +
         protocol::kMaxPortions * sizeof(Portion);
}

void SharedLedger::create(std::byte* memory) {
  memory_ = memory;
  new (memory_) Head;
  for (int w = 0; w < workers_; ++w) new (&entry(w)) Entry;
  for (int p = 0; p < protocol::kMaxPortions; ++p) new (&portion(p)) Portion;
}

Status SharedLedger::deal(const Terms& terms) {
  STORMO_RETURN_IF_ERROR(status_());
  if (terms.steps > kMostSteps || terms.first_step > terms.steps) {
    return invalid_argument("servers deal up to " + std::to_string(kMostSteps) +
                            " steps, not those from " + std::to_string(terms.first_step) + " to " +
                            std::to_string(terms.steps));
  }
  if (terms.portions < 0 || terms.portions > protocol::kMaxPortions) {
    return invalid_argument("servers deal up to " + std::to_string(protocol::kMaxPortions) +
                            " portions of a batch, not " + std::to_string(terms.portions));
  }
  head().first_step = terms.first_step;
  head().steps = terms.steps;
  head().first_sample = terms.first_sample;
  head().by_speed = terms.by_speed;
  if (terms.portions > 0) {
    begin_portions(terms);
    return {};
  }
  for (int w = 0; w < workers_; ++w) {
    entry(w).share = Share{.begin = terms.first_step, .end = terms.steps}.word();
  }
  return {};
}

Result<Ledger::Terms> SharedLedger::terms() {
  STORMO_RETURN_IF_ERROR(status_());
  return Terms{.first_step = head().first_step,
               .steps = head().steps,
               .first_sample = head().first_sample,
               .by_speed = head().by_speed,
               .portions = head().portions};
}

// The task is in hand before it is taken out of the share, so that it is at no moment in neither.
bool SharedLedger::take(int part, bool front, StepTask& task) {
  std::atomic<std::uint64_t>& word = entry(part).share;
  std::uint64_t seen = word.load();
  for (;;) {
    Share share = Share::of(seen);
    if (share.left() == 0) {
      entry(worker_).doing = 0;
      return false;
    }
    task = {.part = part, .step = front ? share.begin++ : --share.end};
    entry(worker_).doing = pack(task);
    if (word.compare_exchange_weak(seen, share.word())) return true;
  }
}

std::optional<StepTask> SharedLedger::take_own() {
  StepTask task;
  return take(worker_, /*front=*/true, task) ? std::optional(task) : std::nullopt;
}

/// The other worker that has most steps left, of those whose steps may be taken; -1: none.
int SharedLedger::slowest_other() const {
  int slowest = -1;
  std::uint64_t most = 0;
  for (int w = 0; w < workers_; ++w) {
    const std::uint64_t left = Share::of(entry(w).share.load()).left();
    const bool may = entry(w).lost.load() || head().by_speed.load();
    if (w == worker_ || !may || left <= most) continue;
    slowest = w;
    most = left;
  }
  return slowest;
}

std::optional<StepTask> SharedLedger::take_of_others() {
  for (int other = slowest_other(); other >= 0; other = slowest_other()) {
    StepTask task;
    // a worker that is lost needs no step before others do
    if (take(other, entry(other).lost.load(), task)) return task;
  }
  return std::nullopt;
}

Result<Ledger::Turn> SharedLedger::next(const Outcome& outcome) {
  STORMO_RETURN_IF_ERROR(status_());
  Entry& mine = entry(worker_);
  bool has_changed = !mine.came.exchange(true) || mine.doing.load() != 0 || outcome.samples > 0;
  if (!has_portions() || finish_portion(outcome.samples > 0)) note_outcome(outcome);
  mine.doing = 0;
  seen_ = head().bell.load();
  Turn out;
  if (has_portions()) {
    out = next_portion();
  } else if (head().stop_signal.load() == 0) {
    std::optional<StepTask> task = take_own();
    if (!task) task = take_of_others();
    out = turn();
    out.task = task;
  } else {
    out = turn();
  }
  // a worker that waits must not wake itself
  has_changed = has_changed || out.task.has_value();
  if (has_changed) head().bell.ring();
  return out;
}

void SharedLedger::note_outcome(const Outcome& outcome) {
  Entry& mine = entry(worker_);
  mine.loss_sum.store(mine.loss_sum.load(std::memory_order_relaxed) + outcome.loss_sum,
                      std::memory_order_relaxed);
  mine.samples.fetch_add(outcome.samples, std::memory_order_relaxed);
}

Result<Ledger::Turn> SharedLedger::look() {
  STORMO_RETURN_IF_ERROR(status_());
  seen_ = head().bell.load();
  return turn();
}

Ledger::Turn SharedLedger::turn() const {
  Turn out;
  out.stop_signal = head().stop_signal.load();
  out.ends_share = Share::of(entry(worker_).share.load()).left() == 0;
  out.position = head().steps.load();
  out.all_done = true;
  // shares before tasks in hand: a task goes from there to here
  for (int w = 0; w < workers_; ++w) {
    const Share share = Share::of(entry(w).share.load());
    if (share.left() == 0) continue;
    out.position = std::min(out.position, share.begin);
    out.all_done = false;
  }
  for (int w = 0; w < workers_; ++w) {
    out.totals.loss_sum += entry(w).loss_sum.load(std::memory_order_relaxed);
    out.totals.samples += entry(w).samples.load(std::memory_order_relaxed);
    const bool may_come = out.stop_signal == 0 || entry(w).came.load();
    if (const std::uint32_t times = entry(w).times_lost.load(); times > 0) {
      out.losses.push_back({.worker = w, .lost = times, .came_back = entry(w).times_back.load()});
    }
    if (w != worker_ && may_come && !entry(w).left.load() && !entry(w).lost.load()) ++out.others;
    const std::uint64_t doing = entry(w).doing.load();
    if (doing == 0) continue;
    out.position = std::min(out.position, unpack(doing).step);
    out.all_done = false;
  }
  if (has_portions()) add_portions(out);
  return out;
}

// A wait that ends before its deadline has seen a change.
Status SharedLedger::wait(Deadline by) {
  for (;;) {
    STORMO_RETURN_IF_ERROR(status_());
    const Deadline look = Deadline::at(std::min(by.when(), Deadline::after(kLookEvery).when()));
    const Status status =
        transport::wait_for(head().bell, seen_ + 1, {.policy = {}, .health = healthy_, .by = look});
    if (status.code() != Code::kDeadlineExceeded) STORMO_RETURN_IF_ERROR(status);
    if (!look.expired() || by.expired()) return {};
  }
}

Status SharedLedger::leave() {
  STORMO_RETURN_IF_ERROR(status_());
  entry(worker_).left = true;
  head().bell.ring();
  return {};
}

Status SharedLedger::stop(int signal) {
  STORMO_RETURN_IF_ERROR(status_());
  int none = 0;
  head().stop_signal.compare_exchange_strong(none, signal);
  head().bell.ring();
  return {};
}

void SharedLedger::evict() {
  if (!entry(worker_).lost.exchange(true)) ++entry(worker_).times_lost;
  entry(worker_).doing = 0;
  give_up_portions();
  head().bell.ring();
}

void SharedLedger::readmit() {
  if (entry(worker_).lost.exchange(false)) ++entry(worker_).times_back;
  entry(worker_).left = false;
  head().bell.ring();
}

}  // namespace stormo::server
