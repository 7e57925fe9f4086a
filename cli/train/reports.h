#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <cli/top/job_file.h>
#include <cli/train/cost.h>
#include <cli/train/rank.h>
#include <stormo/base/clock.h>
#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>
#include <stormo/observe/background_stream.h>
#include <stormo/observe/json_lines.h>
#include <stormo/observe/metrics/monitor.h>
#include <stormo/observe/otlp/otlp_exporter.h>
#include <stormo/observe/progress.h>
#include <stormo/observe/records.h>
#include <stormo/observe/tee.h>

namespace stormo::cli {

/// The observers of a rank that reports: JSON lines for programs, text for people, and others.
/// Whatever their readers do, the run goes on.
class Reports {
 public:
  explicit Reports(bool json);
  Reports(const Reports&) = delete;
  Reports& operator=(const Reports&) = delete;

  // Before observer().
  /// A table of the run, in an open file. `heads`: it begins with the names of the columns.
  void add_table(Descriptor file, bool heads);
  /// An event file of TensorBoard. `tokens_per_sample`: see observe::EventLog.
  void add_events(Descriptor file, std::int64_t tokens_per_sample);
  /// Borrowed.
  void add(observe::RunObserver& observer) { all_.push_back(&observer); }
  /// What a run uses; it is told of each record before all others. Borrowed.
  void add_cost(observe::CostMeter& meter);

  observe::RunObserver& observer();
  std::ostream& errors() { return errors_; }
  /// A line for people. Any thread.
  void say(const std::string& line) { errors_.append("stormo train: " + line + "\n"); }
  /// What ranks have chosen: a line for people, and one of JSON for programs.
  void note(const std::string& line, const std::string& json);
  /// A person learns of it in any case.
  void fail(const observe::ErrorRecord& record);
  /// Waits for the readers until `by`. False when anything was lost.
  bool finish(Deadline by);

 private:
  /// What is written into a file of its own.
  struct Log {
    Log(Descriptor opened, observe::BackgroundStream::OnLoss on_loss)
        : file(std::move(opened)), stream(file.get(), std::move(on_loss)) {}
    Descriptor file;
    observe::BackgroundStream stream;
    std::unique_ptr<observe::RunObserver> writer = {};
  };
  Log& add_log(Descriptor file, const std::string& flag, const std::string& what);

  observe::BackgroundStream errors_;
  observe::BackgroundStream output_;
  observe::TextObserver text_;
  observe::WarningObserver warnings_;
  observe::JsonObserver json_;
  std::list<Log> logs_;
  std::list<observe::CostReport> costs_;
  std::vector<observe::RunObserver*> all_;
  std::optional<observe::TeeObserver> tee_;
  bool text_in_all_ = false;
  const bool has_json_;
};

/// What a rank that reports has.
struct Outlets {
  Cost cost = {};  ///< goes after what looks at it
  std::unique_ptr<observe::Monitor> monitor = {};
  std::optional<JobFile> job_file = {};  ///< goes before the monitor
  std::optional<Reports> reports = {};
  std::unique_ptr<observe::OtlpExporter> otlp = {};  ///< tells the reports
};

/// --metrics: the run can be looked at from now on, if it was asked for. Says where, also to
/// `stormo top`.
Status open_monitor(const TrainRun& run, Outlets& outlets);

/// Makes the reports of a rank that reports. `goes_on`: it goes on with those of another one.
Status open_reports(const TrainRun& run, bool goes_on, Outlets& outlets);

}  // namespace stormo::cli
