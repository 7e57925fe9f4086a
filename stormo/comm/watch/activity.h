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

/// The operations of a rank in one group: the current one and the last ones before it. Whoever runs
/// the operations writes it, one thread at a time and without locks, because this happens in every
/// operation. Any thread may read it; this is done for reports of failures.
class Activity {
 public:
  static constexpr std::size_t kKept = 64;

  struct Record {
    Operation operation;
    std::uint64_t place =
        0;  ///< number of collectives that the group had begun, including this one
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
  /// For an operation that did not wait for other ranks: saves reading the clock.
  void end_at_once() {
    Slot& slot = last_slot();
    slot.ended.store(slot.began.load(std::memory_order_relaxed), kRelease);
  }

  /// For progress that is neither the begin nor the end of what is recorded: a message is complete
  /// that no caller waits for. Any thread.
  void note_progress() { progress_.fetch_add(1, std::memory_order_relaxed); }
  /// How often that was noted.
  std::uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }

  /// The last operation begun; if there was none, a default Record that has ended.
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
  std::atomic<std::uint64_t> progress_{0};
  std::array<Slot, kKept> slots_{};
};

/// How fast a rank makes progress.
struct Pace {
  bool started = false;     ///< the first step is over, in which programs load and compile
  Duration slowest_step{};  ///< of those after the first
  Duration idle{};          ///< since its last progress: an operation, a message or a section
};

/// The activities of a rank in all of its groups. Thread-safe.
class Activities {
 public:
  /// Adds a group and returns its Activity, which the group's thread writes. It is listed as long
  /// as the pointer is held. `group`: its name, empty for the world. `rank`: this rank's number in
  /// it. `size`: its number of ranks, 0 where that is not known.
  std::shared_ptr<Activity> add(std::string group, Rank rank, int size = 0);
  /// The group has ended: it is not listed any more.
  void remove(const Activity& activity);
  /// Sets what the program is doing between operations: "step 12 forward". Sections that begin with
  /// "step" and a number are steps; "start" means that steps will follow.
  void set_section(std::string_view text);
  std::string section() const;
  /// "step 12, all_reduce #40 (sum of 10 float32)".
  std::string text() const;
  /// An operation under way in the group of that name.
  struct Call {
    std::string group;
    int size = 0;  ///< ranks of the group; 0: not known
    Operation operation;
    std::uint64_t began = 0;  ///< tells it from an equal one before it
    bool operator==(const Call&) const = default;
  };
  std::vector<Call> running() const;

  struct Group {
    std::string name;
    Rank rank = 0;
    int size = 0;
    std::shared_ptr<const Activity> activity;
  };
  std::vector<Group> groups() const;
  /// A counter that changes when an operation or section begins, an operation ends, or an Activity
  /// notes progress.
  std::uint64_t changes() const;

  /// Must be called often, by one thread. It advances the time that pace() uses, by at most kMaxGap
  /// per call, so that the time during which a process was stopped does not count as idle. A change
  /// of `progress` means that an operation has made progress.
  void tick(TimePoint now, std::uint64_t progress);
  static constexpr Duration kMaxGap = std::chrono::seconds(1);
  Pace pace() const;
  /// The time that has passed, as counted by tick().
  Duration awake() const;

 private:
  struct Entry {
    std::string group;
    Rank rank;
    int size;
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
