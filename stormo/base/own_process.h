#pragma once

#include <atomic>
#include <cstdint>

namespace stormo {

/// The process that an object was made in. A child that was forked from it has the object's memory,
/// but neither its threads nor its place in a job: it must leave the object alone.
class OwnProcess {
 public:
  OwnProcess();
  /// False in a forked child. Any thread; costs a load.
  bool is_here() const { return forks_ == forks.load(std::memory_order_relaxed); }

 private:
  /// How many forks lie between this process and the one that loaded the library.
  static std::atomic<std::uint32_t> forks;
  std::uint32_t forks_;
};

}  // namespace stormo
