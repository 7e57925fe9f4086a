#include <stormo/observe/metrics/run_status.h>

#include <algorithm>
#include <utility>

namespace stormo::observe {

std::string RunStatus::state() const {
  if (error) return "failed";
  if (end) return end->interrupted ? "interrupted" : "done";
  return start ? "training" : "starting";
}

StatusObserver::StatusObserver() {
  mine_.began = std::chrono::system_clock::now();
  publish_last();
}

std::shared_ptr<const RunStatus> StatusObserver::status() const {
  const std::lock_guard lock(mutex_);
  return shown_;
}

// A reader holds the lock for the copy of a pointer, but may lose its core meanwhile.
void StatusObserver::publish() {
  auto next = std::make_shared<const RunStatus>(mine_);
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) shown_.swap(next);
}

void StatusObserver::publish_last() {
  auto next = std::make_shared<const RunStatus>(mine_);
  const std::lock_guard lock(mutex_);
  shown_.swap(next);
}

void StatusObserver::note_step(const StepRecord& record) {
  mine_.step = record;
  mine_.step_seen = std::chrono::system_clock::now();
  if (record.checkpoint != mine_.checkpoint) {
    mine_.checkpoint = record.checkpoint;
    mine_.checkpoint_seen = std::chrono::steady_clock::now();
  }
}

void StatusObserver::on_start(const StartRecord& record) {
  mine_.start = record;
  publish();
}

void StatusObserver::on_step(const StepRecord& record) {
  note_step(record);
  if (!record.rank_shares.empty()) mine_.logged = record;
  publish();
}

void StatusObserver::on_progress(const StepRecord& record) {
  note_step(record);
  publish();
}

void StatusObserver::on_eval(const EvalRecord& record) {
  const auto old = std::ranges::find(mine_.evaluations, record.split, &EvalRecord::split);
  if (old == mine_.evaluations.end()) {
    mine_.evaluations.push_back(record);
  } else {
    *old = record;
  }
  publish();
}

void StatusObserver::on_save_failed(const SaveFailedRecord& record) {
  ++mine_.failed_saves;
  mine_.save_failed = record;
  publish();
}

void StatusObserver::on_warning(const WarningRecord& record) {
  ++mine_.warnings[record.kind];
  mine_.warning = record;
  publish();
}

void StatusObserver::on_slow_ranks(const SlowRanksRecord& record) {
  mine_.slow.step = record.step;
  for (const SlowRanksRecord::Change& c : record.changes) {
    std::erase_if(mine_.slow.changes, [&c](const SlowRanksRecord::Change& old) {
      return old.rank == c.rank && old.part == c.part;
    });
    if (c.begins) mine_.slow.changes.push_back(c);
  }
  publish();
}

void StatusObserver::on_end(const EndRecord& record) {
  mine_.end = record;
  publish_last();
}

void StatusObserver::on_error(const ErrorRecord& record) {
  mine_.error = record;
  publish_last();
}

}  // namespace stormo::observe
