#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// A computation of one micro-batch, as every replica has it, with what goes with it on its rank.
struct StagePiece {
  std::size_t action = 0;  ///< of the plan
  int stage = 0;
  std::vector<std::size_t> before = {};  ///< recomputations
  std::vector<std::size_t> after = {};   ///< the loss, and what is sent on
  std::vector<std::size_t> needs = {};   ///< pieces of the same micro-batch
  std::vector<std::size_t> needed_by = {};
  double seconds = 0;         ///< in some unit
  double path = 0;            ///< from its start to the end of its micro-batch
  bool only_weights = false;  ///< the second part of a backward, for which no stage waits
  int chunk = 0;              ///< of the segments of its stage, which follow each other
  int takes = 0;              ///< segments whose activations it begins to keep
  int frees = 0;              ///< that are kept no longer
  int behind = 0;             ///< segments of its chunk behind its own
};

/// Those of a plan, in its order.
std::vector<StagePiece> pieces_of(const plan::StepPlan& plan);

/// Of how many segments a rank may keep activations behind a forward, by stage and chunk of that:
/// as many micro-batches of a stage as the fullest one keeps in the order of the plan, and `more`.
/// Where a chunk has room, so has each later one for the same micro-batch.
struct KeptSegments {
  std::vector<std::vector<int>> in_all;  ///< of all chunks
  std::vector<std::vector<int>> up_to;   ///< of this chunk, and those in front of it
};
KeptSegments kept_segments(const plan::StepPlan& plan, const std::vector<StagePiece>& pieces,
                           int more);

/// What a rank prefers of that what it can start.
enum class Preference { kOrderOfPlan, kBackward, kLongestPath };
inline constexpr std::array kPreferences = {Preference::kOrderOfPlan, Preference::kBackward,
                                            Preference::kLongestPath};

/// Who computes what of all replicas in which order, and when the last one is done.
struct ReroutedOrder {
  struct Task {
    std::size_t piece = 0;
    int replica = 0;
  };
  std::vector<Task> tasks;
  double seconds = 0;
};

/// `rank_of` has a rank for each replica and piece. A rank starts what is ready when it is free:
/// list scheduling. It never gets stuck: a forward leaves room for those of the same micro-batch
/// that are behind it on its stage, so of all forwards that wait for room the one farthest in the
/// model has it.
ReroutedOrder order_tasks(const std::vector<StagePiece>& pieces, int ranks,
                          const KeptSegments& kept, const std::vector<std::vector<Rank>>& rank_of,
                          Preference preference);

}  // namespace stormo::parallel
