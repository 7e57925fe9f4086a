#pragma once

#include <cstdint>
#include <mutex>

#include <ATen/Context.h>

namespace stormo::test {

/// Seeds libtorch's generator, which all threads share. While it lives, no other thread that uses a
/// Seeded draws numbers.
class Seeded {
 public:
  explicit Seeded(std::uint64_t seed) : lock_(drawing()) { at::manual_seed(seed); }

 private:
  static std::mutex& drawing() {
    static std::mutex one;
    return one;
  }
  std::lock_guard<std::mutex> lock_;
};

}  // namespace stormo::test
