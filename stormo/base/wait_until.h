#pragma once

#include <condition_variable>
#include <mutex>

#include <stormo/base/clock.h>

namespace stormo {

/// Waits until the condition holds, at most until `by`. Whether it holds.
template <class Condition>
bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Deadline by,
                const Condition& holds) {
  if (!by.is_never()) return changed.wait_until(lock, by.when(), holds);
  changed.wait(lock, holds);
  return true;
}

}  // namespace stormo
