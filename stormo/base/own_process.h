#pragma once

#include <atomic>
#include <cstdint>

namespace stormo {

/// Identifies the process in which an object was made. A forked child has a copy of the object's
/// memory, but neither its threads nor its connections: it must not use the object.
class OwnProcess {
 public:
  OwnProcess();
  /// False in a forked child. Any thread; costs a load.
  bool is_here() const { return forks_ == forks.load(std::memory_order_relaxed); }

 private:
  /// Number of forks between the process that loaded the library and this one.
  static std::atomic<std::uint32_t> forks;
  std::uint32_t forks_;
};

}  // namespace stormo
