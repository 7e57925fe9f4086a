#pragma once

#include <array>
#include <csignal>

namespace stormo::train {

/// While one lives, signals that ask a run to stop are noted instead of ending the process, except
/// those that the process was told to ignore when it started (nohup). The
/// handlers before it come back with the last one; several may live at once (ranks as threads) and
/// see the same signal.
class StopSignal {
 public:
  /// Of a person, of a scheduler, and those by which schedulers give notice that time runs out.
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};

  /// kNotices does not change SIGINT and SIGTERM: for the time before the run starts. kMember is of
  /// a process of an elastic job: while such a one lives, SIGTERM is for all ranks only if the
  /// launcher has sent it to all, or has ended; else it asks this one to leave.
  enum class Scope { kAll, kNotices, kMember };
  explicit StopSignal(Scope scope = Scope::kAll);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The number of the first signal received since the first StopSignal was made, or 0. Ignores
  /// SIGUSR1, see take_usr1().
  static int received();
  /// Who has first asked this process to leave its elastic job, which goes on. received() does not
  /// tell of that.
  enum class Leave { kNotAsked, kByLauncher, kByOthers };
  static Leave asked_to_leave();
  /// Whether SIGUSR1 was received since the last call.
  static bool take_usr1();
  static bool has_usr1();

 private:
  Scope scope_;
};

}  // namespace stormo::train
