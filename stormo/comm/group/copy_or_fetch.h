#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace stormo::comm {

/// Whether ranks copy their private buffers into the Arena for their peers, or let them fetch and
/// write what they need through the kernel. Which is faster depends on the processor, and in a
/// virtual machine on how near its cores are to each other at the moment (ADR 5). So both are
/// timed: in turns at first, later the slower one now and then. For one kind of operation of about
/// one size; one rank's proposals hold for all.
class CopyOrFetch {
 public:
  /// What to do this time.
  bool copies() const { return copies_; }
  /// What to do next time, by what was seen here.
  bool proposes_copies() const {
    const unsigned next = uses_ + 1;
    if (next < kFirst) return next % 2 == 0;
    const bool faster = ways_[kCopies].best() <= ways_[kFetches].best();
    return next % kAgain == 0 ? !faster : faster;
  }
  /// What it cost this time, without the wait for peers to begin (any unit), and what to do next.
  void took(double cost, bool copies_next) {
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
    /// The least of the last few: interruptions only add. Once something was added.
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
