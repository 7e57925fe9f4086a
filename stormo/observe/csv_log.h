#pragma once

#include <ostream>

#include <stormo/base/clock.h>
#include <stormo/observe/records.h>

namespace stormo::observe {

/// Writes a run as a table: a row for each logged step, and one for each evaluation, in which only
/// the columns of its split have values. `wait` and so on are shares of the wall time, `seconds`
/// count from the start of the run.
class CsvLog final : public RunObserver {
 public:
  /// `out` must outlive the log. `heads`: it begins with the names of the columns.
  CsvLog(std::ostream& out, bool heads);

  void on_start(const StartRecord& record) override;
  void on_step(const StepRecord& record) override;
  void on_eval(const EvalRecord& record) override;

 private:
  double seconds() const;

  std::ostream& out_;
  TimePoint started_;
};

}  // namespace stormo::observe
