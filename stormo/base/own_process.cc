#include <stormo/base/own_process.h>

#include <pthread.h>

namespace stormo {

std::atomic<std::uint32_t> OwnProcess::forks{0};

OwnProcess::OwnProcess() : forks_(forks.load(std::memory_order_relaxed)) {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
}

}  // namespace stormo
