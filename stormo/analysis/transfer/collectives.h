#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/dtype.h>
#include <stormo/base/ids.h>
#include <stormo/plan/schedule.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// What a plan leaves open, and what decides how much its actions move.
struct StepSizes {
  /// float64 numbers that kAgree adds up, without the one that averages bring; 0: there is no run,
  /// and nothing is agreed.
  std::int64_t agreed_numbers = 0;
  /// Numbers of the optimizer that kAverage averages, for each element of the parameters.
  int averaged_slots = 0;
  /// By segment: bytes of its output for one micro-batch, of all positions, which is what stages of
  /// a pipeline move. Empty: unknown, taken as 0.
  std::vector<std::int64_t> outputs = {};
  /// Of a micro-batch, for what ranks add up that compute layers together. 0: unknown, taken as 0
  /// bytes.
  std::int64_t samples = 0;
  /// The type in which they add up activations, if it is not that of the parameters. Gradients of
  /// activations are taken to be of that of the parameters.
  std::optional<DType> computes_in = {};
  bool operator==(const StepSizes&) const = default;
};

/// One collective operation, seen from above.
struct Collective {
  plan::GoalKind goal = plan::GoalKind::kAllReduce;
  /// Of the whole buffer: all ranks' parts together; of an all_to_all what all ranks have to send.
  std::int64_t elements = 0;
  DType dtype = DType::kFloat32;
  std::vector<std::string> axes;  ///< mesh axes whose ranks take part together
  std::vector<int> stages = {};   ///< of a pipeline, whose ranks take part; empty: all
  int slice = -1;                 ///< whose ranks take part: those with this one; negative: all
  /// Done only where these ranks are on several hosts: there the weights of an average are added up
  /// first.
  bool only_between_hosts = false;
  std::string algorithm;  ///< a builder; empty: what the communicator chooses
  Rank root = 0;          ///< of a broadcast, by its number among these ranks

  std::int64_t bytes() const { return elements * static_cast<std::int64_t>(size_of(dtype)); }
  bool operator==(const Collective&) const = default;
};

/// The collectives that action number `action` of a verified plan starts, in order, in the form of
/// libtorch training here: parts lie in flat buffers (plan/flat_buffer.h), replicas average all
/// gradients of a type at once, with a number for each that says whether a rank has it. How many
/// rows of sparse tables travel no plan knows: they are left out. Of computations those inside of
/// layers that several ranks compute together (plan::InnerSums), of attention over positions of
/// several ranks, and of what ranks with parts of the places add up; their halos are no collectives
/// here (crossings_of()). None for axes of one rank, and for barriers, which move nothing; nor for
/// what a worker exchanges with servers (server_bytes()); but a pull of several ranks has a
/// broadcast.
std::vector<Collective> collectives_of(const plan::StepPlan& plan, std::size_t action,
                                       const StepSizes& sizes);

/// Bytes of a tensor that a move between two stages moves, from one rank to one other; 0 for other
/// actions.
std::int64_t moved_bytes(const plan::StepPlan& plan, const plan::Action& a, const StepSizes& sizes);

/// Bytes that an action moves between one worker and the servers: a pull the trainable parameters
/// of its range, a push their gradients, in their own type; an exchange parameters in both
/// directions. Where servers average, a pull and an average move the optimizer's state, too, and a
/// number of steps for each parameter. 0 for other actions. How many rows of sparse tables a worker
/// pushes no plan knows: they are left out.
std::int64_t server_bytes(const plan::StepPlan& plan, const plan::Action& a,
                          const StepSizes& sizes);

}  // namespace stormo::analysis
