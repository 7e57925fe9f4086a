#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace stormo::train {

/// Processor time of this process's threads, in seconds.
struct ThreadTimes {
  double ran = 0;
  double waited = 0;  ///< runnable, while other threads had the core
};
/// Of all threads so far (/proc/self/task); zeros where the kernel does not count.
ThreadTimes thread_times();

/// Says from the times of successive moments whether others use the cores of this process. It takes
/// one bad moment to say yes, and two seconds of good ones to say no again. Pure.
class BusyJudge {
 public:
  explicit BusyJudge(const ThreadTimes& before) : last_(before) {}
  /// `total`: thread_times() now, a moment (100 ms) after the last call.
  bool is_busy(const ThreadTimes& total);
  /// Of the last moment in which threads had something to do: the share in which they waited.
  double waiting_share() const { return share_; }

 private:
  ThreadTimes last_;
  double share_ = 0;
  int good_moments_ = 0;
  bool busy_ = false;
};

/// While it lives and the machine is busy, all threads of this process ask the kernel for short
/// time slices (Linux 6.12), so that each is soon back on a core: threads that wait for each other
/// wait for the one that has no core. How long they spin meanwhile is said when libgomp is loaded,
/// see launch/openmp_waits.h.
class BusyWatch {
 public:
  /// `threads`: intra-op threads of this rank. `say` gets a line when the machine is found busy, at
  /// most once; on a thread of its own.
  BusyWatch(int threads, std::function<void(const std::string&)> say);
  ~BusyWatch();
  BusyWatch(const BusyWatch&) = delete;
  BusyWatch& operator=(const BusyWatch&) = delete;

 private:
  void watch();
  void change(bool busy, double waiting_share);

  const int threads_;
  const std::function<void(const std::string&)> say_;
  bool said_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread watcher_;
};

}  // namespace stormo::train
