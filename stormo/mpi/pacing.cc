#include <stormo/mpi/pacing.h>

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace stormo::mpi {
namespace {

constexpr int kLooks = 4;
constexpr Duration kYield = std::chrono::microseconds(200);
constexpr Duration kShortest = std::chrono::microseconds(20);
constexpr Duration kLongest = std::chrono::milliseconds(4);
constexpr int kPartOfTheWait = 16;

}  // namespace

bool Pacing::pause() {
  if (++looks_ <= kLooks) return false;
  const TimePoint now = std::chrono::steady_clock::now();
  if (looks_ == kLooks + 1) start_ = now;
  const Duration waited = now - start_;
  if (waited < policy_.spin) return false;
  if (waited < policy_.spin + kYield) {
    sched_yield();
    return true;
  }
  std::this_thread::sleep_for(std::clamp(waited / kPartOfTheWait, kShortest, kLongest));
  return true;
}

}  // namespace stormo::mpi
