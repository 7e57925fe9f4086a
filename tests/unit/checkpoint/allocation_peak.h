#pragma once

#include <cstddef>

namespace stormo::test {

/// Bytes that operator new handed out and that were alive at one time, beyond those at its
/// construction. Of all threads; one at a time.
class AllocationPeak {
 public:
  AllocationPeak();
  std::size_t bytes() const;

 private:
  std::size_t before_;
};

}  // namespace stormo::test
