#pragma once

#include <utility>
#include <vector>

#include <stormo/observe/records.h>

namespace stormo::observe {

/// Passes every record to several observers, in order. Does not own them.
class TeeObserver : public RunObserver {
 public:
  explicit TeeObserver(std::vector<RunObserver*> observers) : observers_(std::move(observers)) {}

  void on_start(const StartRecord& r) override { each(&RunObserver::on_start, r); }
  void on_sharding(const ShardingRecord& r) override { each(&RunObserver::on_sharding, r); }
  void on_step(const StepRecord& r) override { each(&RunObserver::on_step, r); }
  void on_progress(const StepRecord& r) override { each(&RunObserver::on_progress, r); }
  void on_eval(const EvalRecord& r) override { each(&RunObserver::on_eval, r); }
  void on_save_failed(const SaveFailedRecord& r) override { each(&RunObserver::on_save_failed, r); }
  void on_warning(const WarningRecord& r) override { each(&RunObserver::on_warning, r); }
  void on_slow_ranks(const SlowRanksRecord& r) override { each(&RunObserver::on_slow_ranks, r); }
  void on_end(const EndRecord& r) override { each(&RunObserver::on_end, r); }
  void on_error(const ErrorRecord& r) override { each(&RunObserver::on_error, r); }

 private:
  template <class Record>
  void each(void (RunObserver::*take)(const Record&), const Record& record) {
    for (RunObserver* observer : observers_) (observer->*take)(record);
  }

  std::vector<RunObserver*> observers_;
};

}  // namespace stormo::observe
