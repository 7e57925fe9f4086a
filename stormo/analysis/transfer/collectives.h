#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/dtype.h>
#include <stormo/base/ids.h>
#include <stormo/codec/low_rank.h>
#include <stormo/plan/schedule.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// What a plan leaves open, and what decides how much its actions move.
struct StepSizes {
  /// float64 numbers that kAgree adds up, without the one that averages bring; 0: there is no run,
  /// and nothing is agreed.
  std::int64_t agreed_numbers = 0;
  /// Numbers of the optimizer that kAverage averages, and kTournament sends, for each element of
  /// the parameters.
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
  /// Gradients are on a device, and the host must not wait for it to know which there are: flags
  /// travel by themselves.
  bool flags_apart = false;
  bool operator==(const StepSizes&) const = default;
};

/// How a collective combines the elements of ranks.
enum class Combine : std::uint8_t {
  kSum,
  kWeightedAverage,  ///< by the ranks' weights, of which some may be 0
  kMax,
};

/// What a collective is of.
enum class Content : std::uint8_t {
  kValues,   ///< parameters, gradients, activations, or numbers that an action adds up
  kFlags,    ///< a number for each of the gradients behind it: whether ranks have it
  kWeights,  ///< the weights of the ranks in an average
};

/// One collective operation, seen from above: all that is said of it but where the elements lie.
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
  std::string algorithm = {};  ///< a builder; empty: what the communicator chooses
  Rank root = 0;               ///< of a broadcast, by its number among these ranks

  // What only requests say; see sent_as().
  Combine combine = Combine::kSum;
  Content content = Content::kValues;
  bool weights_known = false;  ///< of a weighted average: their sum, to all ranks
  /// One that encodes, in which the terms of a sum of float32 numbers travel; else they travel as
  /// they are.
  Codec codec = Codec::kNone;
  /// Of a codec with factors: the gradients, in the order in which they lie.
  std::vector<codec::MatrixShape> gradients = {};
  /// Of frozen parameters that stay whole: only the first of these moves anything, and no step
  /// counts it.
  bool once = false;
  /// Messages of so many elements from each rank to each of its neighbours (plan/mixing).
  bool of_neighbours = false;
  /// Of whole parameters or their gradients, by their numbers in the plan: those that are sent from
  /// where they lie, and those that are copied into one buffer. Averages of gradients have a flag
  /// for each of both in front (unless flags go before them).
  std::vector<int> in_place = {};
  std::vector<int> packed = {};

  std::int64_t bytes() const { return elements * static_cast<std::int64_t>(size_of(dtype)); }
  bool operator==(const Collective&) const = default;
};

/// Gradients of at least so many bytes are reduced where they lie.
inline constexpr std::int64_t kInPlaceBytes = 64 << 10;

/// The collectives of which a communicator makes a request on so many ranks: an encoded sum is
/// one of codes, and a weighted average learns the sum of weights first.
std::vector<Collective> sent_as(const Collective& request, int ranks);

/// The collectives that action number `action` of a verified plan starts on all ranks, in order:
/// what their requests are sent as. Of computations those inside of layers that several ranks
/// compute together (plan::InnerSums), of attention over positions of several ranks, and of what
/// ranks with parts of the places add up; their halos are no collectives here (crossings_of()).
/// None for barriers, which move nothing, nor for what a worker exchanges with servers
/// (server_bytes()); but a pull of several ranks has a broadcast.
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
