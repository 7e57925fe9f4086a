#pragma once

#include <ostream>

#include <stormo/observe/records.h>

namespace stormo::observe {

/// Schema version of the lines; stated by the start line.
inline constexpr int kJsonLinesSchema = 1;

/// Writes one JSON object per line and nothing else: events "start", "sharding", "step", "eval",
/// "save_failed", "warning" and last "end" or "error". Numbers can be parsed back exactly; fields
/// without a value (no validation split, not a number) are null.
class JsonObserver final : public RunObserver {
 public:
  /// `out` must outlive the observer. Every line is flushed.
  explicit JsonObserver(std::ostream& out) : out_(out) {}

  void on_start(const StartRecord& record) override;
  void on_sharding(const ShardingRecord& record) override;
  void on_step(const StepRecord& record) override;
  void on_eval(const EvalRecord& record) override;
  void on_save_failed(const SaveFailedRecord& record) override;
  void on_warning(const WarningRecord& record) override;
  void on_slow_ranks(const SlowRanksRecord& record) override;
  void on_end(const EndRecord& record) override;
  void on_error(const ErrorRecord& record) override;

 private:
  std::ostream& out_;
};

}  // namespace stormo::observe
