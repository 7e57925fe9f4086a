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

/// Runs collectives of any algorithm for the sake of their time. Internal to tune and regret.
class Trial {
 public:
  /// Buffers up to `max_bytes`, in the world's arena. `pause` passes before every run. Collective.
  static Result<std::unique_ptr<Trial>> create(Group& world, std::uint64_t max_bytes,
                                               Duration pause);
  ~Trial();
  Trial(const Trial&) = delete;

  /// `first`, then all other algorithms that suit the world's hosts, those that take pieces with
  /// several numbers of them; of several that are the same schedule here one.
  std::vector<Choice> candidates(plan::GoalKind goal, std::uint64_t bytes,
                                 const Choice& first) const;

  /// Seconds of the slowest rank, equal on all. The ranks start together. Without a choice: of what
  /// any caller gets. Collective.
  Result<double> once(plan::GoalKind goal, std::uint64_t bytes,
                      const std::optional<Choice>& choice = std::nullopt);

  /// Group::posts_whole of what once() runs without a choice.
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

/// The middle one; of two the larger.
double median_of(std::vector<double> values);

}  // namespace stormo::comm
