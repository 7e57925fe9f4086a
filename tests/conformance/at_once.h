#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace stormo::testing {

/// Calls f(0) to f(n - 1), so many at once: for tests that wait most of the time.
template <class F>
void at_once(int threads, std::size_t n, const F& f) {
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&] {
      for (std::size_t i = next++; i < n; i = next++) f(i);
    });
  }
  for (std::thread& t : pool) t.join();
}

}  // namespace stormo::testing
