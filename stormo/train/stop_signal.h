#pragma once

namespace stormo::train {

/// While one lives, SIGINT and SIGTERM are noted instead of ending the process. The handlers before
/// it come back with the last one; several may live at once (ranks as threads) and see the same
/// signal.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The number of the first signal received since the first one was made, or 0.
  static int received();
};

}  // namespace stormo::train
