#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/observe/records.h>

namespace stormo::observe {

/// What is known of a run at a moment.
struct RunStatus {
  std::chrono::system_clock::time_point began{};
  std::optional<StartRecord> start{};  ///< empty: it has not begun to train
  std::optional<StepRecord> step{};    ///< the newest
  std::chrono::system_clock::time_point step_seen{};
  std::optional<StepRecord> logged{};  ///< the newest with the times of all ranks
  std::string checkpoint{};            ///< the newest that was complete; empty: none of this run
  TimePoint checkpoint_seen{};
  std::int64_t failed_saves = 0;
  std::vector<EvalRecord> evaluations{};         ///< the newest of each split
  std::map<std::string, std::int64_t> warnings;  ///< by kind
  std::optional<WarningRecord> warning{};        ///< the newest
  SlowRanksRecord slow{};                        ///< those that are slow now, the newest last
  std::optional<SaveFailedRecord> save_failed{};
  std::optional<EndRecord> end{};
  std::optional<ErrorRecord> error{};

  /// "starting", "training", "done", "interrupted", "failed".
  std::string state() const;
};

/// Keeps the status of a run. Whoever reads it never makes the training thread wait: a record that
/// comes in that very moment is seen together with the next one.
class StatusObserver final : public RunObserver {
 public:
  StatusObserver();

  /// Never null. Any thread.
  std::shared_ptr<const RunStatus> status() const;

  void on_start(const StartRecord& record) override;
  void on_step(const StepRecord& record) override;
  void on_progress(const StepRecord& record) override;
  void on_eval(const EvalRecord& record) override;
  void on_save_failed(const SaveFailedRecord& record) override;
  void on_warning(const WarningRecord& record) override;
  void on_slow_ranks(const SlowRanksRecord& record) override;
  void on_end(const EndRecord& record) override;
  void on_error(const ErrorRecord& record) override;

 private:
  void note_step(const StepRecord& record);
  void publish();
  void publish_last();

  RunStatus mine_;  ///< of the training thread
  mutable std::mutex mutex_;
  std::shared_ptr<const RunStatus> shown_;  ///< guarded by mutex_
};

}  // namespace stormo::observe
