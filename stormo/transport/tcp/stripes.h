#pragma once

#include <cstddef>
#include <deque>
#include <span>

#include <stormo/transport/transport.h>

namespace stormo::transport {

/// Sends a long message over several connections, an equal part over each. The parts arrive at the
/// same time, but a Progress is only told how many bytes from the beginning are complete.
class Stripes {
 public:
  /// Shorter messages use one connection, because several would cost more in system calls than they
  /// save.
  static constexpr std::size_t kLeastBytes = std::size_t{256} << 10;

  Stripes(Progress* whole, std::size_t bytes, int parts);

  /// Bytes of `whole` that are part i.
  template <class T>
  static std::span<T> part(std::span<T> whole, int i, int parts) {
    const std::size_t begin = begin_of(whole.size(), i, parts);
    return whole.subspan(begin, begin_of(whole.size(), i + 1, parts) - begin);
  }
  /// The Progress of part i.
  Progress* progress(int i) { return &parts_[static_cast<std::size_t>(i)]; }

 private:
  class Part final : public Progress {
   public:
    Part(Stripes& all, std::size_t bytes) : size(bytes), all_(all) {}
    void received(std::size_t bytes) override {
      done = bytes;
      all_.report();
    }
    const std::size_t size;
    std::size_t done = 0;

   private:
    Stripes& all_;
  };

  /// Parts start at multiples of 64 bytes, so that no element is divided.
  static std::size_t begin_of(std::size_t bytes, int i, int parts) {
    if (i == parts) return bytes;
    return bytes / static_cast<std::size_t>(parts) / 64 * 64 * static_cast<std::size_t>(i);
  }
  void report();

  Progress* const whole_;
  std::deque<Part> parts_;
};

}  // namespace stormo::transport
