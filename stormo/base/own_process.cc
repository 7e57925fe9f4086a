#include <stormo/base/own_process.h>

#include <pthread.h>

#include <atomic>

namespace stormo {
namespace {

/// How many forks lie between this process and the one that loaded the library.
std::atomic<std::uint32_t> forks{0};

}  // namespace

OwnProcess::OwnProcess() : forks_(forks.load(std::memory_order_relaxed)) {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
}

bool OwnProcess::is_here() const { return forks_ == forks.load(std::memory_order_relaxed); }

}  // namespace stormo
