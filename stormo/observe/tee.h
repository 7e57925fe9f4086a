#pragma once

#include <vector>

#include <stormo/observe/records.h>

namespace stormo::observe {

/// Passes every record to several observers, in order. Does not own them.
class TeeObserver : public RunObserver {
 public:
  explicit TeeObserver(std::vector<RunObserver*> observers) : observers_(std::move(observers)) {}

  void on_start(const StartRecord& record) override;
  void on_sharding(const ShardingRecord& record) override;
  void on_step(const StepRecord& record) override;
  void on_progress(const StepRecord& record) override;
  void on_eval(const EvalRecord& record) override;
  void on_save_failed(const SaveFailedRecord& record) override;
  void on_warning(const WarningRecord& record) override;
  void on_end(const EndRecord& record) override;
  void on_error(const ErrorRecord& record) override;

 private:
  std::vector<RunObserver*> observers_;
};

}  // namespace stormo::observe
