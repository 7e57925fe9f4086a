#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/observe/records.h>

namespace stormo::observe {

/// What a run has used so far.
struct CostRecord {
  double wall_s = 0;      ///< of all starts of the run
  double wasted_s = 0;    ///< of it: after what was saved, before a fault
  int faults = 0;         ///< from which the run was resumed
  double host_hours = 0;  ///< of all starts, as core_hours
  double core_hours = 0;
  std::optional<double> price{};              ///< where the price of a host hour is known
  std::map<std::string, double> joules{};     ///< by source, since this start
  std::optional<double> joules_per_sample{};  ///< likewise
  std::string no_energy{};                    ///< why it is not known; empty: it is
};

/// The event "cost" of --json.
std::string cost_json(const CostRecord& record);
/// Lines for the end of a summary: name and value.
std::map<std::string, std::string> cost_rows(const CostRecord& record);

/// What earlier starts of a run have left for the next one, in a file beside its checkpoints.
struct CostLedger {
  double wall_s = 0;
  double saved_wall_s = 0;  ///< when the newest checkpoint was complete
  double wasted_s = 0;
  int faults = 0;
  bool operator==(const CostLedger&) const = default;
};
std::string to_text(const CostLedger& ledger);
Result<CostLedger> parse_cost_ledger(std::string_view text);
/// For the start that goes on: what was done after the checkpoint is lost.
CostLedger resumed(const CostLedger& before);

/// Measures a run. Records come on the training thread; record() may be called on any.
class CostMeter final : public RunObserver {
 public:
  struct Options {
    /// Joules by source since the start; looked at once a second. Empty: `no_energy` says why.
    std::function<std::map<std::string, double>()> joules{};
    std::string no_energy{};
    std::optional<double> price_per_host_hour{};
    int threads_per_rank = 1;
    CostLedger before{};  ///< of earlier starts
    std::string
        ledger_file{};  ///< written every few seconds once there is a checkpoint; may be empty
    const Clock* clock = nullptr;  ///< borrowed; null: the real one
  };
  explicit CostMeter(Options options);

  CostRecord record() const;

  void on_start(const StartRecord& record) override;
  void on_step(const StepRecord& record) override { look(record); }
  void on_progress(const StepRecord& record) override { look(record); }
  void on_end(const EndRecord& record) override;
  void on_error(const ErrorRecord& record) override;

 private:
  void look(const StepRecord& step);
  void measure();
  double wall_s() const;
  void write_ledger() const;

  const Options options_;
  const RealClock real_clock_{};
  const Clock& clock_;
  // of the training thread
  std::optional<StartRecord> start_;
  TimePoint began_{};
  TimePoint looked_{};
  TimePoint written_{};
  std::int64_t samples_ = 0;  ///< of this start
  std::optional<std::string> checkpoint_;
  double saved_wall_s_;

  mutable std::mutex mutex_;
  CostRecord record_;  ///< guarded by mutex_
};

/// Writes what a meter has measured, when the run ends.
class CostReport final : public RunObserver {
 public:
  /// As a line of JSON, or as rows for people. All are borrowed.
  CostReport(const CostMeter& meter, std::ostream& out, bool as_json)
      : meter_(meter), out_(out), as_json_(as_json) {}
  void on_end(const EndRecord& record) override;

 private:
  const CostMeter& meter_;
  std::ostream& out_;
  const bool as_json_;
};

}  // namespace stormo::observe
