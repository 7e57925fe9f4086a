#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/comm/group/group.h>
#include <stormo/comm/selection/selection.h>

namespace stormo::comm {

/// Runs collectives with any algorithm to measure their time. Internal to this room.
class Trial {
 public:
  /// Allocates buffers of `max_bytes` in the world's arena. Waits for `pause` before every run. A
  /// collective.
  static Result<std::unique_ptr<Trial>> create(Group& world, std::uint64_t max_bytes,
                                               Duration pause);
  ~Trial();
  Trial(const Trial&) = delete;

  /// `first`, then all other algorithms that can run on the world's hosts; those that take pieces
  /// with several numbers of pieces. Of several with the same schedule only one.
  std::vector<Choice> candidates(plan::GoalKind goal, std::uint64_t bytes,
                                 const Choice& first) const;

  /// Seconds of the slowest rank, equal on all ranks. The ranks start together. Without a choice,
  /// the one that any caller gets is measured. A collective.
  Result<double> once(plan::GoalKind goal, std::uint64_t bytes,
                      const std::optional<Choice>& choice = std::nullopt);

  /// Group::posts_whole for the operation that once() runs without a choice.
  bool posted_whole(plan::GoalKind goal, std::uint64_t bytes) const;

 private:
  Trial(Group& world, Duration pause) : world_(world), pause_(pause) {}

  struct Buffers {
    Buffer in;
    Buffer out;
  };
  Buffers buffers(plan::GoalKind goal, std::uint64_t bytes) const;

  Group& world_;
  const Duration pause_;
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
};

/// The median; for an even number of values the larger of the two middle ones.
double median_of(std::vector<double> values);

}  // namespace stormo::comm
