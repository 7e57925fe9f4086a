#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include <stormo/observe/records.h>

namespace stormo::observe {

/// Writes a run as a TensorBoard event file: a scalar for each value of a logged step and of an
/// evaluation, with the tags of torchtitan, so that runs of both lie over each other.
class EventLog final : public RunObserver {
 public:
  /// `out` must outlive the log. `tokens_per_sample`: of texts; 0: samples are no texts.
  EventLog(std::ostream& out, std::int64_t tokens_per_sample);

  void on_start(const StartRecord& record) override;
  void on_step(const StepRecord& record) override;
  void on_eval(const EvalRecord& record) override;

  /// "events.out.tfevents.1700000000.HOST.PID": TensorBoard reads all files of a folder that have
  /// such names, in the order of the names.
  static std::string file_name(std::int64_t unix_seconds, const std::string& host, int pid);

 private:
  void write_event(std::int64_t step, const std::string& content);

  std::ostream& out_;
  const std::int64_t tokens_per_sample_;
  std::int64_t ranks_ = 1;
  std::int64_t global_batch_ = 0;
};

}  // namespace stormo::observe
