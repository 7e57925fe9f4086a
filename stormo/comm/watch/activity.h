#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/comm/operation/operation.h>
#include <stormo/comm/watch/ticks.h>

namespace stormo::comm {

/// The operations of a rank in one group: the one that it is in, and the last ones before it.
/// Written by the one thread that runs operations, without locks (it lies on the path of each of
/// them); read by any thread, when something has gone wrong.
class Activity {
 public:
  static constexpr std::size_t kKept = 64;

  struct Record {
    Operation operation;
    std::uint64_t place = 0;  ///< how many collectives the group had begun, this one included
    std::uint64_t began = 0;  ///< ticks()
    std::uint64_t ended =
        0;  ///< 0: not yet; a failed operation never ends. `began`: it waited for nobody
    bool running() const { return ended == 0; }
  };

  void begin(const Operation& operation) {
    place_ += operation.sequence == 0 ? 0 : 1;
    const std::uint64_t version = version_.load(std::memory_order_relaxed);
    Slot& slot = slots_[(version / 2) % kKept];
    version_.store(version + 1, std::memory_order_relaxed);
    const OperationWords words = words_of(operation);
    for (std::size_t i = 0; i < words.size(); ++i) slot.words[i].store(words[i], kRelease);
    slot.place.store(place_, kRelease);
    slot.began.store(ticks(), kRelease);
    slot.ended.store(0, kRelease);
    version_.store(version + 2, kRelease);
  }
  void end() { last_slot().ended.store(ticks(), kRelease); }
  /// For an operation that waited for nobody: spares the look at the clock.
  void end_at_once() {
    Slot& slot = last_slot();
    slot.ended.store(slot.began.load(std::memory_order_relaxed), kRelease);
  }

  /// The last operation begun; a default Record that has ended when there was none.
  Record last() const;
  /// The last kKept operations, oldest first.
  std::vector<Record> records() const;

 private:
  static constexpr auto kRelease = std::memory_order_release;
  static constexpr auto kAcquire = std::memory_order_acquire;

  struct alignas(64) Slot {
    std::array<std::atomic<std::uint64_t>, kOperationWords> words{};
    std::atomic<std::uint64_t> place{0};
    std::atomic<std::uint64_t> began{0};
    std::atomic<std::uint64_t> ended{0};
  };
  static Record read(const Slot& slot);
  Slot& last_slot() { return slots_[(version_.load(std::memory_order_relaxed) / 2 - 1) % kKept]; }

  // A sequence lock over the ring: twice the number of operations begun, odd while one is written.
  std::atomic<std::uint64_t> version_{0};
  std::uint64_t place_ = 0;  // the writer's own
  std::array<Slot, kKept> slots_{};
};

/// How fast a rank gets on by itself.
struct Pace {
  bool started = false;     ///< beyond the first step, where programs load and compile
  Duration slowest_step{};  ///< of those after the first
  Duration idle{};          ///< since it last began or ended an operation or named a section
};

/// What a rank is doing in all of its groups. Thread-safe.
class Activities {
 public:
  /// Entry of a group, for its thread to write; listed as long as somebody holds it. `group`: its
  /// name, empty for the world. `rank`: this rank's number in it.
  std::shared_ptr<Activity> add(std::string group, Rank rank);
  /// What the program is doing between operations: "step 12 forward". Sections that begin with
  /// "step" and a number are steps; "start" says that steps will come.
  void set_section(std::string_view text);
  std::string section() const;
  /// "step 12, all_reduce #40 (sum of 10 float32)".
  std::string text() const;
  /// An operation under way in the group of that name.
  struct Call {
    std::string group;
    Operation operation;
    bool operator==(const Call&) const = default;
  };
  std::vector<Call> running() const;

  struct Group {
    std::string name;
    Rank rank = 0;
    std::shared_ptr<const Activity> activity;
  };
  std::vector<Group> groups() const;
  /// Differs from an earlier value when an operation has begun or ended since, or a section.
  std::uint64_t changes() const;

  /// To be called often, by one thread: time passes for pace() in these calls, at most kMaxGap in
  /// each, so that a process that was stopped for an hour has not been idle for an hour. A
  /// change of `progress` says that an operation has got on.
  void tick(TimePoint now, std::uint64_t progress);
  static constexpr Duration kMaxGap = std::chrono::seconds(1);
  Pace pace() const;
  /// How much time has passed so.
  Duration awake() const;

 private:
  struct Entry {
    std::string group;
    Rank rank;
    std::weak_ptr<const Activity> activity;
  };
  std::uint64_t changes_locked() const;

  mutable std::mutex mutex_;
  std::string section_;
  std::vector<Entry> entries_;

  TimePoint last_tick_ = TimePoint::min();
  Duration awake_{};
  std::uint64_t num_sections_ = 0;
  std::uint64_t seen_changes_ = 0;
  Duration changed_at_{};  // these in awake time
  bool names_steps_ = false;
  std::string step_;  // "step 12"; empty outside of steps
  Duration step_began_{};
  int steps_ended_ = 0;
  Duration slowest_step_{};
};

}  // namespace stormo::comm
