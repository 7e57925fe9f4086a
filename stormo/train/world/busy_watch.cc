#include <stormo/train/world/busy_watch.h>

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <sstream>
#include <utility>

#include <stormo/base/file.h>
#include <stormo/base/proc.h>

namespace stormo::train {
namespace {

constexpr std::chrono::milliseconds kMoment{100};
constexpr int kGoodMoments = 20;
constexpr double kLeastSeconds = 0.02;  // in a moment; less says nothing
constexpr double kBusyShare = 0.2;
constexpr double kGoodShare = 0.05;

constexpr std::uint64_t kShortSlice = 200'000;  // nanoseconds
constexpr std::uint64_t kUsualSlice = 0;        // what the kernel takes

/// As in <linux/sched/types.h>, which <sched.h> contradicts.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};

/// Only of threads that are scheduled as usual; where it fails, all stays as it is.
void set_slices(std::uint64_t nanoseconds) {
  for (const pid_t tid : numbers_in("/proc/self/task")) {
    SchedulingAttributes attributes;
    if (::syscall(SYS_sched_getattr, tid, &attributes, sizeof attributes, 0) != 0) continue;
    if (attributes.policy != SCHED_OTHER) continue;
    attributes.runtime = nanoseconds;
    ::syscall(SYS_sched_setattr, tid, &attributes, 0);
  }
}

}  // namespace

ThreadTimes thread_times() {
  ThreadTimes out;
  for (const pid_t tid : numbers_in("/proc/self/task")) {
    std::istringstream in(first_line(fmt::format("/proc/self/task/{}/schedstat", tid)));
    double ran = 0, waited = 0;  // nanoseconds
    if (!(in >> ran >> waited)) continue;
    out.ran += 1e-9 * ran;
    out.waited += 1e-9 * waited;
  }
  return out;
}

bool BusyJudge::is_busy(const ThreadTimes& total) {
  // times of threads that have ended are missing
  const double ran = std::max(0.0, total.ran - last_.ran);
  const double waited = std::max(0.0, total.waited - last_.waited);
  last_ = total;
  if (ran + waited < kLeastSeconds) return busy_;
  share_ = waited / (ran + waited);
  if (share_ > kBusyShare) busy_ = true;
  good_moments_ = share_ < kGoodShare ? good_moments_ + 1 : 0;
  if (good_moments_ >= kGoodMoments) busy_ = false;
  return busy_;
}

BusyWatch::BusyWatch(int threads, std::function<void(const std::string&)> say)
    : threads_(threads), say_(std::move(say)) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for other threads
  watcher_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

BusyWatch::~BusyWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

void BusyWatch::watch() {
  BusyJudge judge(thread_times());  // what was before does not count
  bool busy = false;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kMoment, [this] { return over_; })) {
    const bool now = judge.is_busy(thread_times());
    if (now != std::exchange(busy, now)) change(now, judge.waiting_share());
  }
}

void BusyWatch::change(bool busy, double waiting_share) {
  set_slices(busy ? kShortSlice : kUsualSlice);
  if (!busy || std::exchange(said_, true)) return;
  say_(fmt::format("the machine is busy: this rank waited for a core in {:.0f} % of its time{}",
                   100 * waiting_share,
                   threads_ > 1 ? fmt::format("; its {} threads wait for each other, one thread "
                                              "(STORMO_THREADS=1) may be faster",
                                              threads_)
                                : std::string()));
}

}  // namespace stormo::train
