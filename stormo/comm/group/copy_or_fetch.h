#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace stormo::comm {

/// Chooses whether ranks copy their private buffers into the Arena for their peers, or let peers
/// read and write them by system calls. Which is faster depends on the processor, and in a virtual
/// machine on the current distance of its cores (ADR 5). So both are timed: alternately at first,
/// later the slower one from time to time. One object serves one kind of operation of about one
/// size. All ranks follow the proposals of one rank.
class CopyOrFetch {
 public:
  /// The choice for the current operation.
  bool copies() const { return copies_; }
  /// The choice that this rank proposes for the next operation, by its own measurements.
  bool proposes_copies() const {
    const unsigned next = uses_ + 1;
    if (next < kFirst) return next % 2 == 0;
    const bool faster = ways_[kCopies].best() <= ways_[kFetches].best();
    return next % kAgain == 0 ? !faster : faster;
  }
  /// Records the time of this operation (any unit), without the wait for peers to begin, and the
  /// common choice for the next one.
  void record_time(double cost, bool copies_next) {
    ways_[copies_ ? kCopies : kFetches].add(cost);
    copies_ = copies_next;
    ++uses_;
  }

 private:
  static constexpr unsigned kFirst = 8;
  static constexpr unsigned kAgain = 128;
  enum : std::size_t { kCopies, kFetches };
  class Way {
   public:
    void add(double cost) { costs_[added_++ % kKept] = cost; }
    /// The smallest of the last few, because interruptions only increase the time. Needs at least
    /// one.
    double best() const {
      return *std::min_element(costs_.begin(), costs_.begin() + std::min(added_, kKept));
    }

   private:
    static constexpr std::ptrdiff_t kKept = 3;
    std::array<double, kKept> costs_{};
    std::ptrdiff_t added_ = 0;
  };

  std::array<Way, 2> ways_;
  unsigned uses_ = 0;
  bool copies_ = true;
};

}  // namespace stormo::comm
