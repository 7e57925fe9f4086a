#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/comm/operation.h>

namespace stormo::comm {

/// The operation that a rank is in. Written by the one thread that runs operations, without locks
/// (it lies on the path of each of them); read by any thread, when something has gone wrong.
class Activity {
 public:
  struct Snapshot {
    Operation operation;  ///< the last one begun
    bool running = false;
  };

  void begin(const Operation& operation) {
    write(std::bit_cast<Words>(operation));
    running_.store(true, std::memory_order_release);
  }
  void end() { running_.store(false, std::memory_order_release); }

  Snapshot snapshot() const {
    for (;;) {
      const bool running = running_.load(std::memory_order_acquire);
      const std::uint64_t before = version_.load(std::memory_order_acquire);
      Words words{};
      for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
      const std::uint64_t after = version_.load(std::memory_order_relaxed);
      if (before == after && before % 2 == 0) return {std::bit_cast<Operation>(words), running};
    }
  }

 private:
  static constexpr std::size_t kWords = sizeof(Operation) / sizeof(std::uint64_t);
  using Words = std::array<std::uint64_t, kWords>;

  // A sequence lock: the version is odd while words change.
  void write(const Words& words) {
    const std::uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  std::atomic<std::uint64_t> version_{0};
  std::array<std::atomic<std::uint64_t>, kWords> words_{};
  std::atomic<bool> running_{false};
};

/// What a rank is doing in all of its groups. Thread-safe.
class Activities {
 public:
  /// Entry of a group, for its thread to write; listed as long as somebody holds it. `group`: its
  /// name, empty for the world.
  std::shared_ptr<Activity> add(std::string group);
  /// What the program is doing between operations: "step 12".
  void set_section(std::string_view text);
  /// "step 12, all_reduce #40 (sum of 10 float32)".
  std::string text() const;
  /// An operation under way in the group of that name.
  struct Call {
    std::string group;
    Operation operation;
    bool operator==(const Call&) const = default;
  };
  std::vector<Call> running() const;

 private:
  struct Entry {
    std::string group;
    std::weak_ptr<const Activity> activity;
  };
  mutable std::mutex mutex_;
  std::string section_;
  std::vector<Entry> entries_;
};

}  // namespace stormo::comm
